// Scales: from values to places along an axis, with ticks at round values, labelled in their unit.
//
// The same as drawing/scales.py, text for text: what a chart says must not change when the script draws it anew.
// tests/browser/test_charts.py holds both against each other. No part of it knows of the page.

const SMALLEST = 1e-100; // sizes of values that are drawn: those beyond come from faults
const LARGEST = 1e100;
const WIDEST = 1e-9; // a linear scale narrower than this, in parts of its values, has no ticks that differ
const DIGITS = 7; // a tick has at most, unless it takes more to tell it from the next
const CLOCK_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
const CLOCK_LOG_S = [1, 10, 60, 600, 3600, 36000, 86400, 864000, 8640000];

// Numbers as Python writes them

/** A number's digits, rounded half to even as Python does and toFixed does not: so many of them, and the exponent. */
function rounded(value, count) {
  const [mantissa, power] = Math.abs(value).toExponential(60).split("e");
  const all = mantissa.replace(".", "");
  const exponent = Number(power);
  if (count < 0 || value === 0) return ["0", exponent];
  const [kept, rest] = [all.slice(0, count), all.slice(count)];
  const isUp = rest[0] > "5" || (rest[0] === "5" && (/[1-9]/.test(rest.slice(1)) || "13579".includes(kept.at(-1) || "0")));
  if (!isUp) return [kept || "0", exponent];
  const next = String(BigInt(kept || "0") + 1n).padStart(count, "0");
  return next.length > count ? [next.slice(0, Math.max(count, 1)), exponent + 1] : [next, exponent];
}

const sign = (value, text) => (value < 0 || Object.is(value, -0) ? `-${text}` : text);
const grouped = (text) => text.replace(/^\d+/, (whole) => whole.replace(/\B(?=(\d{3})+$)/g, ","));

/** Digits with their point: 10 to the power of `exponent` is the place of the first. */
function pointed(digits, exponent) {
  if (exponent < 0) return `0.${"0".repeat(-exponent - 1)}${digits}`;
  const whole = digits.slice(0, exponent + 1).padEnd(exponent + 1, "0");
  const part = digits.slice(exponent + 1);
  return part ? `${whole}.${part}` : whole;
}

/** A number with so many decimals and commas between thousands: `,.2f`. */
function fixed(value, places) {
  const [, power] = Math.abs(value).toExponential(60).split("e");
  const count = value === 0 ? 0 : Number(power) + 1 + places;
  const [digits, exponent] = rounded(value, count);
  const isNothing = !/[1-9]/.test(digits);
  const [whole, part = ""] = (isNothing ? "0" : pointed(digits, exponent)).split(".");
  return sign(value, grouped(whole) + (places ? `.${part.padEnd(places, "0").slice(0, places)}` : ""));
}

/** A number with so many digits that count: `,.3g`; `isPadded`: with the zeros at its end, `#.3g`. */
function general(value, count, isPadded = false) {
  if (value === 0) return sign(value, isPadded ? (0).toFixed(count - 1) : "0");
  const [digits, exponent] = rounded(value, count);
  const kept = isPadded ? digits : digits.replace(/0+$/, "");
  if (exponent >= -4 && exponent < count) return sign(value, (isPadded ? String : grouped)(pointed(kept, exponent)));
  const power = `${exponent < 0 ? "-" : "+"}${String(Math.abs(exponent)).padStart(2, "0")}`;
  return sign(value, `${kept[0]}${kept.length > 1 ? `.${kept.slice(1)}` : ""}e${power}`);
}

/** The nearest whole number, half to even. */
function nearest(value) {
  const low = Math.floor(value);
  const rest = value - low;
  return rest > 0.5 || (rest === 0.5 && low % 2) ? low + 1 : low;
}

function duration(value_ms) {
  for (const [unit, factor] of [["s", 1e-3], ["ms", 1], ["µs", 1e3]]) {
    const text = general(value_ms * factor, 3, true);
    if (Number(text) >= 1) return `${text.includes("e") ? fixed(Number(text), 0).replaceAll(",", "") : text} ${unit}`;
  }
  return value_ms ? `${general(value_ms * 1e6, 3, true)} ns` : "0 ns";
}

function clock(seconds) {
  const all = nearest(seconds);
  const [hours, minutes, rest] = [Math.floor(all / 3600), Math.floor((all % 3600 + 3600) % 3600 / 60), (all % 60 + 60) % 60];
  const two = (part) => String(part).padStart(2, "0");
  return hours ? `${hours}:${two(minutes)}:${two(rest)}` : `${minutes}:${two(rest)}`;
}

// Values in words of their unit

const LETTERS = [[1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"], [1, ""]];
const SIZES = {
  plain: LETTERS,
  count: LETTERS,
  rate: LETTERS.map(([size, letter]) => [size, ` ${letter}`.trimEnd()]),
  time: [[1, " s"], [1e-3, " ms"], [1e-6, " µs"], [1e-9, " ns"]],
  clock: [[86400, " d"], [3600, " h"], [60, " min"], [1, " s"]],
};

function write(value, unit, digits) {
  if (unit === "share") return `${general(100 * value, digits).replaceAll(",", "")}%`;
  if (unit === "times") return `${general(value, digits)}x`;
  if (unit === "plain" && Math.abs(value) < 1e5) return general(value, digits);
  if (unit === "count" && Math.abs(value) < 1e4) return fixed(value, 0);
  const sizes = SIZES[unit];
  const [size, letter] =
    sizes.find(([one]) => Math.abs(value) >= one * (1 - 1e-9) && (unit !== "clock" || Number.isInteger(value / one))) ??
    sizes.at(-1);
  return general(value / size, unit === "time" && letter === " s" ? Math.max(digits, 4) : digits) + letter;
}

/** The values in words of their unit, with as few digits as tell them apart; several of them are not rounded. */
export function labels(values, unit) {
  const withDigits = (digits) => values.map((value) => (value === 0 ? "0" : write(value, unit, digits)));
  const whole = withDigits(DIGITS);
  let texts = [];
  for (let digits = 3; digits < 17; digits++) {
    texts = withDigits(digits);
    const isWhole = values.length === 1 || digits > DIGITS || texts.every((text, n) => text === whole[n]);
    if (isWhole && new Set(texts).size === texts.length && !texts.some((text) => text.includes("e+"))) break;
  }
  return texts;
}

/** A value in its unit with three significant digits, as in tooltips. */
export function valueText(value, unit) {
  switch (unit) {
    case "time":
      return duration(1e3 * value);
    case "clock":
      return clock(value);
    case "share":
      return `${fixed(100 * value, 1).replaceAll(",", "").replace(/^-(0\.0)$/, "$1")}%`;
    case "times":
      return `${fixed(value, 2).replaceAll(",", "")}x`;
    case "count":
      return fixed(value, 0);
    default:
      return labels([value], unit)[0];
  }
}

// Ticks

/** All multiples of a step from `low` to `high`, rounding forgiven. */
function stepsWithin(low, high, step) {
  const slack = (1e-9 * (high - low)) / step;
  const [first, last] = [Math.ceil(low / step - slack), Math.floor(high / step + slack)];
  // A step below one is a decimal fraction, of which only the quotient by its inverse is the nearest number.
  const inverse = step < 1 ? nearest(1 / step) : 0;
  const ticks = [];
  // Above 2 ** 53 a number and the next one are the same: what is counted is how many there are, and begins at zero.
  for (let n = 0; n <= last - first; n++) {
    const k = first + n;
    ticks.push(Math.min(Math.max(inverse ? k / inverse : k * step, low), high));
  }
  return ticks;
}

function* steps(low, high, most, unit) {
  let rough = (high - low) / most;
  let days = 1;
  if (unit === "clock" && rough > 0.5) {
    yield* CLOCK_S;
    rough /= 86400;
    days = 86400;
  }
  const power = Math.floor(Math.log10(rough)) - 1;
  for (let exponent = power; exponent < power + 4; exponent++) {
    for (const mantissa of [1, 2, 5]) {
      const step = exponent >= 0 ? mantissa * Number(`1e${exponent}`) : mantissa / Number(`1e${-exponent}`);
      if (unit !== "count" || step >= 1) yield step * days;
    }
  }
}

function linearTicks(low, high, most, unit) {
  let ticks = [];
  let step = 1;
  for (step of steps(low, high, most, unit)) {
    if ((high - low) / step > most + 1) continue;
    ticks = stepsWithin(low, high, step);
    if (ticks.length <= most) break;
  }
  if (ticks.length < 4 && unit !== "clock" && (unit !== "count" || Number.isInteger(step / 2))) {
    const halves = stepsWithin(low, high, step / 2); // 2.5, where 2 gives too many and 5 hardly any
    if (halves.length <= most) ticks = halves;
  }
  return ticks.length ? ticks : [high];
}

function logTicks(low, high, most, unit) {
  const within = (value) => low <= value && value <= high;
  if (unit === "clock") {
    const ticks = CLOCK_LOG_S.filter(within);
    if (ticks.length >= 2 && ticks.length <= most) return ticks;
  }
  const first = unit === "count" ? Math.max(Math.floor(Math.log10(low)), 0) : Math.floor(Math.log10(low));
  const decades = [];
  for (let exponent = first; exponent <= Math.ceil(Math.log10(high)); exponent++) decades.push(exponent);
  for (const mantissas of [[1, 2, 5], [1, 3], [1]]) {
    const ticks = decades.flatMap((exponent) => mantissas.map((m) => Number(`${m}e${exponent}`))).filter(within);
    if (ticks.length > most) continue;
    const isEnough = ticks.length > 2 || (ticks.length === 2 && high / low >= 10);
    return isEnough ? ticks : linearTicks(low, high, most, unit);
  }
  const powers = decades.filter((exponent) => within(Number(`1e${exponent}`)));
  const stride = Math.ceil(powers.length / most);
  return powers.filter((exponent) => exponent % stride === 0).map((exponent) => Number(`1e${exponent}`)).slice(0, most);
}

/** From values in [low, high] to places in [0, 1]; `makeScale` makes them. */
export class Scale {
  constructor(low, high, unit = "plain", isLog = false) {
    Object.assign(this, { low, high, unit, isLog });
  }

  /** The place of a value, which is outside of [0, 1] where the value is outside of the scale. */
  part(value) {
    if (!this.isLog) return (value - this.low) / (this.high - this.low);
    if (value <= 0) return -Infinity;
    return (Math.log10(value) - Math.log10(this.low)) / (Math.log10(this.high) - Math.log10(this.low));
  }

  /** The place of a value; values outside are at the nearest end. */
  place(value) {
    return Math.min(Math.max(this.part(value), 0), 1);
  }

  /** The value at a place, the other way round than `place`. */
  value(place) {
    if (this.isLog) return this.low * (this.high / this.low) ** place;
    return this.low + (this.high - this.low) * place;
  }

  has(value) {
    return value >= this.low && value <= this.high;
  }

  /** At most `most` round values within the scale, each with its place and text. */
  ticks(most = 6) {
    const values = (this.isLog ? logTicks : linearTicks)(this.low, this.high, Math.max(most, 2), this.unit);
    const texts = labels(values, this.unit);
    return values.map((value, n) => ({ value, place: this.place(value), text: texts[n] }));
  }

  /** The most ticks, of at most eight, whose texts have room beside each other; both in characters. */
  ticksWithin(room, gap = 2.5) {
    const length = (text) => [...text].length;
    for (let most = 8; most > 2; most--) {
      const ticks = this.ticks(most);
      const hasRoom = ({ place, text }, n) =>
        !n || (place - ticks[n - 1].place) * room >= (length(ticks[n - 1].text) + length(text)) / 2 + gap;
      if (ticks.every(hasRoom)) return ticks;
    }
    const ticks = this.ticks(2);
    return ticks.length > 1 ? [ticks[0], ticks.at(-1)] : ticks;
  }
}

/** Whether an axis has a place for a value: log axes have none for zero. */
export function fits(value, isLog) {
  return Number.isFinite(value) && Math.abs(value) < LARGEST && (value > SMALLEST || !isLog);
}

/** Whether a linear scale with these ends has ticks that differ. */
export function isWide(low, high) {
  return high - low > Math.max(WIDEST * Math.max(Math.abs(low), Math.abs(high)), SMALLEST);
}

/** The scale on which all values are that fit, and those of `include`; `pad` of its length is free at other ends. */
export function makeScale(values, { unit = "plain", isLog = false, include = [] }, pad = 0) {
  let [low, high] = [Infinity, -Infinity];
  for (const value of [...values, ...include]) {
    if (!fits(value, isLog)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  if (low > high) [low, high] = [isLog ? 1 : 0, 1];
  const [isLowFree, isHighFree] = [!include.includes(low), !include.includes(high)];
  if (isLog) {
    if (high / low < 1.01) return new Scale(low / 1.25, high * 1.25, unit, true);
    const ratio = (high / low) ** pad;
    return new Scale(isLowFree ? low / ratio : low, isHighFree ? high * ratio : high, unit, true);
  }
  if (!isWide(low, high)) {
    const isWhole = unit === "count" || unit === "clock" || Math.abs(high) <= SMALLEST;
    const wide = Math.max(Math.abs(high) / 4, isWhole ? 1 : 0);
    return new Scale(low === 0 ? low : low - wide, high + wide, unit);
  }
  const wide = (high - low) * pad;
  return new Scale(isLowFree ? low - wide : low, isHighFree ? high + wide : high, unit);
}

/** Places moved apart, so that neighbours are `gap` from each other and all within [low, high] where that can be. */
export function spread(places, gap, low, high) {
  const order = places.map((_, n) => n).sort((a, b) => places[a] - places[b] || a - b);
  const moved = [...places];
  let edge = low;
  for (const n of order) {
    moved[n] = edge = Math.max(moved[n], edge);
    edge += gap;
  }
  edge = high;
  for (const n of order.reverse()) {
    moved[n] = edge = Math.min(moved[n], edge);
    edge -= gap;
  }
  return moved;
}
