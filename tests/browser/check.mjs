// Opens the pages of sample runs in Chromium, at three widths, light and dark, with scripts and without, and checks what a
// reader sees. `node check.mjs DIRECTORY` (the pages and their records, from the example sample_pages); with
// `--gallery OUT` it only takes the pictures of docs/gallery.md.
import axe from "axe-core";
import fs from "node:fs";
import path from "node:path";
import { pathToFileURL } from "node:url";
import puppeteer from "puppeteer-core";
import { contradictions, copied } from "./copies.mjs";
import { allowedNumbers, isShownAs } from "./numbers.mjs";
import { brokenPanels, cutTables, notAtOnce, overlaps, paperFaults, sidewaysScroll, strangeElements } from "./seen.mjs";

const WIDTHS = [390, 1280, 1920];
const SCHEMES = ["light", "dark"];
const MAX_BYTES = 300_000;
// A4 without the margins of 1 cm, at 96 px an inch.
const PAPER_WIDTH = 718;
// Cells that are sentences of another report: the time of a lost connection, and a difference of two counts.
const OUTAGES = /^outages: [\d.]+ s$/;
const TRUTH = /^truth: [+-]?\d+$/;

const directory = process.argv[2] ?? "target/pages";
const gallery = process.argv[3] === "--gallery" ? process.argv[4] : null;
const faults = [];
let checks = 0;

function check(holds, where, what) {
  checks += 1;
  if (!holds) faults.push(`${where}: ${what}`);
}

const browser = await puppeteer.launch({
  executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium",
  args: ["--no-sandbox", "--disable-gpu", "--force-color-profile=srgb", "--hide-scrollbars"],
});
const names = fs.readdirSync(directory).filter((name) => name.endsWith(".html")).map((name) => name.slice(0, -5)).sort();
try {
  if (gallery) await takePictures();
  else for (const name of names) await checkPage(name);
} finally {
  await browser.close();
}
if (!gallery) {
  console.log(`${names.length} pages, ${checks} checks, ${faults.length} faults`);
  for (const fault of faults.slice(0, 60)) console.log(`  ${fault}`);
  process.exitCode = faults.length || !names.length ? 1 : 0;
}

async function checkPage(name) {
  const bytes = fs.statSync(path.join(directory, `${name}.html`)).size;
  check(bytes < MAX_BYTES, name, `${bytes} bytes`);
  if (name.startsWith("compared-")) return checkComparison(name);
  if (name.startsWith("capacity-")) return checkCapacity(name);
  const record = JSON.parse(fs.readFileSync(path.join(directory, `${name}.json`)));
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      for (const scripts of [true, false]) await checkView(name, record, { width, scheme, scripts });
    }
  }
  if (record.verdict.outcome === "fail" && name !== "hostile" && name !== "against") await checkAtOnce(name, record);
  await checkPaper(name);
  await checkCopies(name, record);
}

// Somebody who opens the page of a run that failed sees why.
async function checkAtOnce(name, record) {
  const { page } = await open(name, { width: 1280, height: 800, scheme: "light", scripts: true });
  const missed = record.thresholds.filter((row) => !row.passed).length;
  const messages = Math.min(10, record.missing.length + record.slowest.length);
  for (const fault of await page.evaluate(notAtOnce, missed, messages)) check(false, `${name} 1280×800`, `not seen: ${fault}`);
  check(missed + messages > 0, name, "a failure without a message or a threshold");
  await page.close();
}

// The page of a comparison, which has no record and no scripts of its own.
async function checkComparison(name) {
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      const where = `${name} ${width} ${scheme}`;
      const { page, said } = await open(name, { width, scheme, scripts: true });
      await checkLook(page, said, where, false);
      const shown = await page.evaluate(() => ({
        numbers: [...document.querySelectorAll("data[value]")].map((element) => [element.value, element.textContent]),
        verdicts: [...document.querySelectorAll("#figures tbody tr")].map((row) => row.lastElementChild.textContent),
        bars: document.querySelectorAll("#figures svg.bar").length,
        scripts: document.scripts.length,
      }));
      check(shown.numbers.length > 5, where, "hardly a number");
      for (const [value, text] of shown.numbers) check(isShownAs(Number(value), text), where, `${value} is shown as ${text}`);
      for (const text of shown.verdicts) check(/^(better|worse|same|undecided|too few)/.test(text), where, `verdict ${text}`);
      check(shown.verdicts.length > 0 && shown.bars === shown.verdicts.length, where, `${shown.bars} bars`);
      check(shown.scripts === 0, where, `${shown.scripts} scripts`);
      await checkAccessibility(page, where);
      await page.close();
    }
  }
  await checkPaper(name);
}

// The page of a search for a capacity, which has no record and no scripts either.
async function checkCapacity(name) {
  const isFound = name !== "capacity-missed";
  for (const width of WIDTHS) {
    for (const scheme of SCHEMES) {
      const where = `${name} ${width} ${scheme}`;
      const { page, said } = await open(name, { width, scheme, scripts: true });
      const panels = await checkLook(page, said, where, false);
      const shown = await page.evaluate(() => ({
        verdict: document.querySelector(".verdict").textContent,
        numbers: [...document.querySelectorAll("data[value]")].map((element) => [element.value, element.textContent]),
        sections: [...document.querySelectorAll("main section[id]")].map((section) => section.id),
        rates: document.querySelectorAll("#knee tbody tr").length,
        scripts: document.scripts.length,
      }));
      check((isFound ? /CAPACITY\s+1,000\/s/ : /FAIL\s+Missed at 10\/s/).test(shown.verdict), where, `verdict ${shown.verdict}`);
      const sections = isFound ? "goals knee confirmation plan subject" : "goals subject";
      check(shown.sections.join(" ") === sections, where, `sections ${shown.sections}`);
      check(panels === (isFound ? 2 : 0) && shown.rates >= panels, where, `${panels} drawings, ${shown.rates} rates`);
      for (const [value, text] of shown.numbers) check(isShownAs(Number(value), text), where, `${value} is shown as ${text}`);
      check(shown.numbers.length > 0, where, "no number");
      check(shown.scripts === 0, where, `${shown.scripts} scripts`);
      await checkAccessibility(page, where);
      await page.close();
    }
  }
  await checkPaper(name);
}

async function checkLook(page, said, where, scripts) {
  check(said.length === 0, where, `console: ${said.join(" | ")}`);
  await page.evaluate(() => document.querySelectorAll("details").forEach((part) => { part.open = true; }));
  check(!(await page.evaluate(sidewaysScroll)), where, "the page scrolls sideways");
  for (const table of await page.evaluate(cutTables)) check(false, where, `cut off without a hint: ${table}`);
  for (const pair of await page.evaluate(overlaps)) check(false, where, `overlap: ${pair}`);
  const panels = await page.evaluate(brokenPanels, scripts);
  check(panels.faults.length === 0, where, `panels: ${panels.faults.join(", ")}`);
  for (const strange of await page.evaluate(strangeElements)) check(false, where, `strange element: ${strange}`);
  return panels.count;
}

// The page on paper, as Chromium prints it to PDF: light, whatever the screen is.
async function checkPaper(name) {
  for (const scripts of [true, false]) {
    const where = `${name} paper ${scripts ? "scripts" : "no scripts"}`;
    const { page, said } = await open(name, { width: PAPER_WIDTH, scheme: "dark", scripts });
    await page.emulateMediaType("print");
    check(!(await page.evaluate(sidewaysScroll)), where, "the page is wider than the paper");
    for (const fault of await page.evaluate(paperFaults)) check(false, where, fault);
    for (const pair of await page.evaluate(overlaps)) check(false, where, `overlap: ${pair}`);
    const margin = { top: "1cm", bottom: "1cm", left: "1cm", right: "1cm" };
    const file = Buffer.from(await page.pdf({ format: "A4", margin })).toString("latin1");
    check(file.startsWith("%PDF-") && /\/Type ?\/Page\b/.test(file), where, "no PDF with pages");
    check(said.length === 0, where, `console: ${said.join(" | ")}`);
    await page.close();
  }
}

// The buttons copy report.md and run.json, as far as the page has room for them.
async function checkCopies(name, record) {
  const where = `${name} copies`;
  const { page } = await open(name, { width: 1280, scheme: "light", scripts: true });
  const markdown = await copied(page, "markdown");
  check(markdown.status === "Copied.", where, `markdown: ${markdown.status}`);
  const whole = fs.readFileSync(path.join(directory, `${name}.md`), "utf8");
  // A page cuts texts of megabytes, as the sample of hostile texts has them.
  if (name === "hostile") check(markdown.text.length < MAX_BYTES && !/(^|[^\\])<img/.test(markdown.text), where, "markdown with markup");
  else check(markdown.text === whole, where, `markdown differs from report.md at ${firstDifference(markdown.text, whole)}`);
  const json = await copied(page, "record");
  const copy = JSON.parse(json.text);
  const isWhole = ["series", "usage", "slowest"].every((key) => (copy[key] ?? []).length === (record[key] ?? []).length);
  const said = isWhole ? /^Copied(, without .*)?\.$/ : /^Copied, without the seconds, .* which run\.json has\.$/;
  check(said.test(json.status), where, `JSON: ${json.status}`);
  for (const place of contradictions(copy, record).slice(0, 5)) check(false, where, `JSON: ${place}`);
  for (const key of ["run_id", "verdict", "ledger", "stages", "phases", "thresholds", "errors", "parties", "host"]) {
    const size = (value) => value && typeof value === "object" ? Object.keys(value).length : value;
    check(size(copy[key]) === size(record[key]), where, `JSON without ${key}`);
  }
  await page.close();
}

function firstDifference(one, other) {
  const at = [...one].findIndex((letter, place) => letter !== other[place]);
  return `${at}: ${JSON.stringify(one.slice(at, at + 40))}, ${JSON.stringify(other.slice(at, at + 40))}`;
}

async function open(name, { width, scheme, scripts, height = 900 }) {
  const page = await browser.newPage();
  const said = [];
  page.on("console", (message) => ["error", "warn"].includes(message.type()) && said.push(message.text()));
  page.on("pageerror", (error) => said.push(error.message));
  page.on("dialog", (dialog) => { said.push(`dialog: ${dialog.message()}`); dialog.dismiss(); });
  page.on("request", (request) => request.url().startsWith("file:") || said.push(`request: ${request.url()}`));
  await page.setJavaScriptEnabled(scripts);
  await page.setViewport({ width, height, deviceScaleFactor: 1 });
  await page.emulateMediaFeatures([{ name: "prefers-color-scheme", value: scheme }]);
  await page.goto(pathToFileURL(path.resolve(directory, `${name}.html`)).href, { waitUntil: "load" });
  return { page, said };
}

async function checkView(name, record, view) {
  const where = `${name} ${view.width} ${view.scheme} ${view.scripts ? "scripts" : "no scripts"}`;
  const { page, said } = await open(name, view);
  const panels = await checkLook(page, said, where, view.scripts);
  check(panels > 0 || name === "second", where, "no panel at all");
  await checkNumbers(page, record, where);
  if (view.scripts) await checkAccessibility(page, where);
  await page.close();
}

async function checkNumbers(page, record, where) {
  const shown = await page.evaluate(() => ({
    values: [...document.querySelectorAll("data[value]")].map((element) => [element.value, element.textContent]),
    bare: [...document.querySelectorAll("td.n")].filter((cell) => /\d/.test(cell.textContent) && !cell.querySelector("data"))
      .map((cell) => `${cell.closest("section").id}: ${cell.textContent}`),
    curves: JSON.parse(document.getElementById("curves")?.textContent ?? "null"),
    word: document.querySelector(".stamp").textContent.trim(),
  }));
  const { isKnown, isNear } = allowedNumbers(record);
  check(shown.values.length > 5, where, "hardly a number");
  for (const [value, text] of shown.values) {
    check(isKnown(Number(value)), where, `${text}: ${value} is not in run.json`);
    check(isShownAs(Number(value), text), where, `${value} is shown as ${text}`);
  }
  for (const text of shown.bare) check(/^unknown$/.test(text) || OUTAGES.test(text) || TRUTH.test(text), where, `without a value: ${text}`);
  for (const panel of shown.curves?.panels ?? []) {
    for (const curve of panel.curves.filter((curve) => !curve.baseline)) {
      check(curve.y.length <= 1000, where, `${curve.name}: ${curve.y.length} points`);
      const strange = curve.y.filter((value) => value !== null && !isNear(value));
      check(strange.length === 0, where, `${panel.id} ${curve.name}: ${strange.slice(0, 3)} not in run.json`);
    }
  }
  if (record.verdict.outcome) check(shown.word.toLowerCase().endsWith(record.verdict.outcome), where, `verdict ${shown.word}`);
}

async function checkAccessibility(page, where) {
  await page.evaluate(axe.source);
  const found = await page.evaluate(() => window.axe.run(document, { resultTypes: ["violations"] }));
  for (const rule of found.violations.filter((rule) => ["serious", "critical"].includes(rule.impact))) {
    check(false, where, `axe ${rule.id}: ${rule.nodes.length} × ${rule.nodes[0].html.slice(0, 120)}`);
  }
  check(true, where, "axe");
}

async function takePictures() {
  fs.mkdirSync(gallery, { recursive: true });
  const views = [
    ["report-light", "fail", { width: 1280, height: 1800, scheme: "light" }],
    ["report-dark", "against", { width: 1280, height: 1800, scheme: "dark" }],
    ["report-phone", "fail", { width: 390, height: 1200, scheme: "light" }],
    ...names.filter((name) => name.startsWith("failed-")).map((name) => [name, name, { width: 1280, height: 800, scheme: "light" }]),
  ];
  for (const [file, name, view] of views) {
    const { page } = await open(name, { ...view, scripts: true });
    await page.screenshot({ path: path.join(gallery, `${file}.webp`), type: "webp", quality: 30 });
    await page.close();
  }
}
