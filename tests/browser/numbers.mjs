// The numbers that a page may show: those of the record, and what is computed from them by a known rule.

// All numbers of a value, however deep.
function deep(value, found) {
  if (typeof value === "number") found.add(value);
  else if (value && typeof value === "object") for (const part of Object.values(value)) deep(part, found);
}

export function allowedNumbers(record) {
  const found = new Set();
  deep(record, found);
  for (const number of [...found]) found.add(number / 1048576);
  for (const number of derived(record)) found.add(number);
  const sorted = [...found].sort((one, other) => one - other);
  const within = (value, share) => {
    let low = 0, high = sorted.length;
    const least = value - Math.abs(value) * share - 1e-12;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] < least) low = middle + 1; else high = middle;
    }
    return low < sorted.length && sorted[low] <= value + Math.abs(value) * share + 1e-12;
  };
  return { isKnown: (value) => within(value, 1e-9), isNear: (value) => within(value, 6e-4) };
}

function derived(record) {
  const { ledger, stages, parties, series } = record;
  const numbers = [0, record.errors.reduce((sum, row) => sum + row.count, 0)];
  for (const fate of Object.values(ledger)) if (fate !== null && ledger.created) numbers.push(fate / ledger.created * 100);
  for (const party of parties) {
    const cpu = party.user_s + party.sys_s;
    numbers.push(cpu / record.duration_s, ...stages.map((stage) => cpu * 1e6 / stage.count));
  }
  // The seconds of each quarter of the points, the part seconds at both ends left out.
  const points = series.slice(series.length < 3 ? 0 : 1, series.length < 3 ? undefined : -1)
    .filter((row) => (row.created || row.sent) && row.p99_ms).length;
  const size = Math.ceil(points / 4);
  numbers.push(size, points % size || size);
  const means = (record.mades?.hops ?? []).map((hop) => hop.latency_ms?.mean ?? 0);
  const whole = means.reduce((sum, mean) => sum + mean, 0);
  return numbers.concat(means.map((mean) => mean / whole * 100));
}

const UNITS = {
  "": [1], "%": [1], "/s": [1], "µs": [1e-3], ms: [1], s: [1, 1e3], min: [60, 6e4], h: [3600, 3.6e6],
  B: [1], KiB: [1024], MiB: [1 << 20], GiB: [1 << 30], TiB: [2 ** 40],
};

// Whether a text says a value to the last digit that it has.
export function isShownAs(value, text) {
  const limit = /^([<>]) (.*)$/.exec(text);
  if (limit) {
    const bound = Number(limit[2].replace(" %", ""));
    return limit[1] === "<" ? value < bound : value > bound;
  }
  const pieces = [...text.matchAll(/([+-]?[\d,]+(?:\.\d+)?) ?(%|\/s|µs|ms|min|s|h|B|KiB|MiB|GiB|TiB)?/g)];
  if (!pieces.length || pieces.map((piece) => piece[0]).join(" ").replace(/ /g, "") !== text.replace(/ /g, "")) return false;
  return [0, 1].some((variant) => {
    let sum = 0, unit = 1;
    for (const [, number, name] of pieces) {
      const factors = UNITS[name ?? ""];
      unit = factors[Math.min(variant, factors.length - 1)];
      sum += Number(number.replaceAll(",", "")) * unit;
    }
    const last = pieces[pieces.length - 1][1];
    const decimals = last.includes(".") ? last.split(".")[1].length : 0;
    return Math.abs(sum - value) <= 0.5001 * unit * 10 ** -decimals;
  });
}
