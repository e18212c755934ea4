// Drives the web page of a Locust master whose workers are mailrun's: starts a test, looks for our rows, changes the number
// of users, and stops it. `node locust.mjs URL CHROMIUM LIMIT_MS`.
import puppeteer from "puppeteer-core";

const [url, executablePath, limit] = process.argv.slice(2);
const browser = await puppeteer.launch({ executablePath, args: ["--no-sandbox", "--disable-gpu"] });
const page = await browser.newPage();
await page.setViewport({ width: 1400, height: 900 });
page.setDefaultTimeout(Number(limit));
const faults = [];
page.on("pageerror", (error) => faults.push(error.message));

// Sets a field of a form as a user does.
async function fill(name, value) {
  const field = await page.waitForSelector(`input[name=${name}]`, { visible: true });
  await field.click({ clickCount: 3 });
  await page.keyboard.type(value);
}

// Presses the button with that text.
async function press(text) {
  const found = (text) => [...document.querySelectorAll("button")].find((button) => button.innerText.trim().toLowerCase() === text);
  const button = await page.waitForFunction(found, {}, text).catch(async (error) => {
    const texts = await page.evaluate(() => [...document.querySelectorAll("button")].map((button) => button.innerText));
    throw new Error(`no button ${text} among ${texts.join(", ")}: ${error.message}`);
  });
  await button.click();
}

async function waitFor(what, look, ...values) {
  await page.waitForFunction(look, {}, ...values).catch(async (error) => {
    const text = await page.evaluate(() => document.body.innerText);
    throw new Error(`${what}: ${error.message}\n${text}`);
  });
}

try {
  await page.goto(url, { waitUntil: "networkidle0" });
  await fill("userCount", "4");
  await fill("spawnRate", "4");
  await press("start");
  const hasRows = (names) => {
    const rows = [...document.querySelectorAll("tr")].map((row) => [...row.cells].map((cell) => cell.innerText.trim()));
    const of = (name) => rows.find((cells) => cells.includes(name));
    return names.every((name) => of(name) && of(name).some((cell) => /^[1-9]\d*$/.test(cell.replace(/,/g, ""))));
  };
  await waitFor("our rows", hasRows, ["message", "connect", "banner", "mail", "rcpt", "data", "reply", "Aggregated"]);
  const users = (count) => new RegExp(`Users\\s+${count}\\b`, "i").test(document.body.innerText);
  await waitFor("4 users", users, 4);
  await press("edit");
  await fill("userCount", "9");
  await fill("spawnRate", "9");
  await press("update");
  await waitFor("9 users", users, 9);
  // The workers have them too, by what they report.
  const reported = async () => {
    const { workers } = await (await fetch("stats/requests")).json();
    return workers.reduce((sum, worker) => sum + worker.user_count, 0) === 9;
  };
  await waitFor("9 users of workers", reported);
  await press("stop");
  await waitFor("the end", () => /stopped/i.test(document.body.innerText));
  if (faults.length) throw new Error(`errors of the page: ${faults.join("; ")}`);
  console.log("our rows, 4 users, then 9 users, stopped");
} finally {
  await browser.close();
}
