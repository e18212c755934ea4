// What the buttons of a page copy.

// The text that a button copies, and what the page says about it; a stub stands in for the clipboard.
export async function copied(page, what) {
  await page.evaluate(() => {
    window.copiedText = null;
    const clipboard = { writeText: (text) => { window.copiedText = text; return Promise.resolve(); } };
    Object.defineProperty(navigator, "clipboard", { value: clipboard, configurable: true });
    document.querySelector(".actions [role=status]").textContent = "";
  });
  await page.click(`.actions button[data-copy=${what}]`);
  await page.waitForFunction(() => document.querySelector(".actions [role=status]").textContent !== "");
  return page.evaluate(() => ({ text: window.copiedText, status: document.querySelector(".actions [role=status]").textContent }));
}

// Places where a copy of a record says something else than the record; lists may be left out, long texts cut.
export function contradictions(copy, record, place = "record") {
  if (Array.isArray(copy)) {
    if (!copy.length) return [];
    if (!Array.isArray(record) || copy.length !== record.length) return [place];
    return copy.flatMap((part, at) => contradictions(part, record[at], `${place}[${at}]`));
  }
  if (copy && typeof copy === "object") {
    if (!record || typeof record !== "object") return [place];
    return Object.keys(copy).flatMap((key) => contradictions(copy[key], record[key], `${place}.${key}`));
  }
  if (typeof copy === "string" && copy.endsWith("…") && typeof record === "string" && record.startsWith(copy.slice(0, -1))) return [];
  return copy === record || (copy === null && (record === undefined || place.endsWith("histogram"))) ? [] : [place];
}
