// What a reader sees, as functions that run in the page.

// Whether the page is wider than the window.
export function sidewaysScroll() {
  const page = document.scrollingElement;
  return page.scrollWidth > window.innerWidth ? `${page.scrollWidth} px` : "";
}

// Pairs of texts of different elements that lie on each other.
export function overlaps() {
  const boxes = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  const clip = (box, element) => {
    const scroll = element.closest(".scroll")?.getBoundingClientRect();
    if (!scroll) return box;
    return { left: Math.max(box.left, scroll.left), right: Math.min(box.right, scroll.right), top: box.top, bottom: box.bottom };
  };
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.textContent.trim() || ["SCRIPT", "STYLE"].includes(element.tagName) || !element.checkVisibility()) continue;
    const range = document.createRange();
    range.selectNodeContents(node);
    for (const rect of range.getClientRects()) {
      const box = clip(rect, element);
      if (box.right - box.left > 1 && box.bottom - box.top > 1) boxes.push({ box, element, text: node.textContent.trim().slice(0, 30) });
    }
  }
  boxes.sort((one, other) => one.box.top - other.box.top);
  const pairs = [];
  for (let at = 0; at < boxes.length; at += 1) {
    for (let next = at + 1; next < boxes.length && boxes[next].box.top < boxes[at].box.bottom - 3; next += 1) {
      const [one, other] = [boxes[at], boxes[next]];
      if (one.element === other.element) continue;
      const across = Math.min(one.box.right, other.box.right) - Math.max(one.box.left, other.box.left);
      const down = Math.min(one.box.bottom, other.box.bottom) - Math.max(one.box.top, other.box.top);
      if (across > 1.5 && down > 3) pairs.push(`"${one.text}" and "${other.text}" by ${across.toFixed(0)}×${down.toFixed(0)} px`);
    }
  }
  return pairs.slice(0, 10);
}

// Panels without a curve.
export function brokenPanels(scripts) {
  const faults = [];
  const panels = [...document.querySelectorAll("figure.panel")];
  for (const panel of panels) {
    const name = panel.id || panel.closest("section").id;
    const canvas = panel.querySelector("canvas");
    if (panel.id && scripts && !canvas) faults.push(`${name}: no canvas`);
    if (canvas) {
      const { data } = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
      const colours = new Set();
      for (let at = 0; at < data.length; at += 4) if (data[at + 3] > 200) colours.add(data[at] << 16 | data[at + 1] << 8 | data[at + 2]);
      if (colours.size < 3) faults.push(`${name}: an empty canvas`);
      const values = [...panel.querySelectorAll(".u-value")].map((value) => value.textContent.trim());
      if (!values.length || values.some((value) => !/[\da]/.test(value))) faults.push(`${name}: a legend without values`);
      if (panel.querySelector(".drawn").checkVisibility()) faults.push(`${name}: drawn twice`);
    } else {
      const curves = [...panel.querySelectorAll("svg.plot path.k:not(.ghost)")];
      const drawn = curves.filter((curve) => curve.getAttribute("d").length > 6 && curve.checkVisibility());
      if (!drawn.length) faults.push(`${name}: no curve`);
    }
  }
  return { count: panels.length, faults };
}

// What a reader must see of a run that failed without scrolling and unfolding, and does not: the cause, the missed thresholds,
// the worst messages.
export function notAtOnce(missed, messages) {
  const inView = (element) => {
    const { top, bottom } = element.getBoundingClientRect();
    return element.checkVisibility() && top >= 0 && bottom <= window.innerHeight;
  };
  const rows = (id) => [...document.querySelectorAll(`#${id} > .scroll tbody tr`)].filter(inView).length;
  const faults = [];
  if (!inView(document.querySelector(".why"))) faults.push("the cause");
  if (rows("thresholds") < missed) faults.push(`${rows("thresholds")} of ${missed} missed thresholds`);
  const seen = rows("missing") + rows("slowest");
  if (seen < messages) faults.push(`${seen} of ${messages} messages`);
  if (document.querySelector("details[open]")) faults.push("something is unfolded");
  return faults;
}

// Tables of which a part is cut off without a shadow at the edge.
export function cutTables() {
  const cut = [...document.querySelectorAll(".scroll")].filter((box) => box.scrollWidth > box.clientWidth + 1);
  const isHinted = (box) => {
    const { backgroundImage, backgroundAttachment } = getComputedStyle(box);
    return backgroundImage.includes("gradient") && backgroundAttachment.includes("local");
  };
  return cut.filter((box) => !isHinted(box)).map((box) => box.getAttribute("aria-label"));
}

// Elements that no part of the page makes: a peer's text that became markup.
export function strangeElements() {
  const strange = [...document.querySelectorAll("img, iframe, object, embed, form, link, b b, body script:not([type]) ~ img")];
  const handlers = [...document.querySelectorAll("*")].filter((element) => [...element.attributes].some((one) => one.name.startsWith("on")));
  return strange.concat(handlers).map((element) => element.outerHTML.slice(0, 80));
}

// What is wrong with the page on paper: dark colours, controls, curves that are missing or twice, tables beyond the edge.
export function paperFaults() {
  const faults = [];
  const light = (colour) => colour.match(/\d+/g).slice(0, 3).reduce((sum, part) => sum + Number(part), 0) / 765;
  const { backgroundColor, color } = getComputedStyle(document.body);
  if (light(backgroundColor) < 0.95 || light(color) > 0.2) faults.push(`${color} on ${backgroundColor}`);
  for (const stroke of [...document.querySelectorAll("svg.plot path.k")].map((curve) => getComputedStyle(curve).stroke)) {
    if (light(stroke) > 0.6) faults.push(`a curve of ${stroke}`);
  }
  for (const control of document.querySelectorAll("button, nav, .actions, .uplot, .u-legend")) {
    if (control.checkVisibility()) faults.push(`${control.tagName} ${control.className} is printed`);
  }
  for (const panel of document.querySelectorAll("figure.panel")) {
    const drawn = [...panel.querySelectorAll("svg.plot")].filter((plot) => plot.checkVisibility());
    if (!drawn.length) faults.push(`${panel.id}: no drawing`);
  }
  const edge = document.documentElement.clientWidth + 1;
  for (const table of document.querySelectorAll("table")) {
    const cells = [table, ...table.querySelectorAll("th, td")].filter((part) => part.checkVisibility());
    const beyond = Math.max(0, ...cells.map((part) => part.getBoundingClientRect().right));
    if (beyond > edge) faults.push(`a table of ${table.closest("section")?.id} ends at ${beyond.toFixed(0)} of ${edge} px`);
    const { overflowX } = getComputedStyle(table.parentElement);
    if (overflowX !== "visible") faults.push(`a table of ${table.closest("section")?.id} is in a box that cuts (${overflowX})`);
  }
  return [...new Set(faults)].slice(0, 10);
}
