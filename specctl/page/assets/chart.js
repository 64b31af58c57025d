// Small charts as SVG: lines over time, and bars.

const NAMESPACE = "http://www.w3.org/2000/svg";
const NARROW = matchMedia("(max-width: 640px)");
const HEIGHT = 170;
const LEFT = 46;
const BOTTOM = 20;
const TOP = 8;
const RIGHT = 8;

function svg(name, attributes, text) {
  const node = document.createElementNS(NAMESPACE, name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A narrow screen shows less time on the same height, so that words stay readable.
const width = () => (NARROW.matches ? 340 : 480);

// A round upper end, and how many steps the grid has up to it.
function scale(most) {
  if (!(most > 0)) return [1, 1];
  const unit = 10 ** Math.floor(Math.log10(most));
  for (const [factor, steps] of [[1, 2], [2, 2], [4, 4], [5, 5], [8, 4], [10, 5]]) {
    if (most <= factor * unit) return [factor * unit, steps];
  }
  return [10 * unit, 5];
}

function frame(label, top, steps, format) {
  const chart = svg("svg", { class: "chart", viewBox: `0 0 ${width()} ${HEIGHT}`, role: "img", "aria-label": label });
  for (let i = 0; i <= steps; i += 1) {
    const y = at(i / steps);
    chart.append(svg("line", { class: "grid", x1: LEFT, x2: width() - RIGHT, y1: y, y2: y }));
    chart.append(svg("text", { x: LEFT - 6, y: y + 4, "text-anchor": "end" }, format((top * i) / steps)));
  }
  return chart;
}

const at = (share) => HEIGHT - BOTTOM - share * (HEIGHT - BOTTOM - TOP);

const short = (value) => (value >= 10000 ? `${value / 1000}k` : `${Math.round(value * 100) / 100}`);

// times: Unix seconds. series: [{values, b}], undefined values are gaps. isStep: values hold until the next one.
export function lines(label, times, series, { isStep = false, least = 0 } = {}) {
  const known = series.flatMap((one) => one.values.filter((value) => value !== undefined && value !== null));
  const [top, steps] = scale(Math.max(least, ...known, 0));
  const chart = frame(label, top, isStep && top < 4 ? top : steps, short);
  const end = times[times.length - 1] ?? 0;
  const span = Math.max(end - (times[0] ?? 0), 60);
  const x = (time) => width() - RIGHT - ((end - time) / span) * (width() - RIGHT - LEFT);
  for (const part of [0, 0.5, 1]) {
    const anchor = part === 0 ? "end" : part === 1 ? "start" : "middle";
    const ago = part * span;
    const words = part === 0 ? "now" : ago < 90 ? `${Math.round(ago)} s ago` : `${Math.round(ago / 60)} min ago`;
    chart.append(svg("text", { x: x(end - ago), y: HEIGHT - 4, "text-anchor": anchor }, words));
  }
  for (const one of series) {
    const path = line(times, one.values, x, top, isStep);
    if (path) chart.append(svg("path", { class: one.b ? "series b" : "series", d: path }));
  }
  return chart;
}

function line(times, values, x, top, isStep) {
  let path = "";
  let last;
  times.forEach((time, i) => {
    const value = values[i];
    if (value === undefined || value === null) {
      last = undefined;
      return;
    }
    const y = at(value / top).toFixed(1);
    const across = x(time).toFixed(1);
    if (last === undefined) path += `M${across} ${y}`;
    else path += isStep ? `H${across}V${y}` : `L${across} ${y}`;
    last = y;
  });
  return path;
}

// shares: by position, 0 to 1.
export function bars(label, shares) {
  const chart = frame(label, 100, 4, (value) => `${value} %`);
  const room = (width() - LEFT - RIGHT) / Math.max(shares.length, 6);
  shares.forEach((share, i) => {
    const left = LEFT + room * i;
    const top = at(share);
    const bar = svg("rect", { class: "bars", x: left + room * 0.18, y: top, width: room * 0.64, height: HEIGHT - BOTTOM - top });
    bar.append(svg("title", {}, `position ${i + 1}: ${Math.round(100 * share)} %`));
    chart.append(bar, svg("text", { x: left + room / 2, y: HEIGHT - 4, "text-anchor": "middle" }, `${i + 1}`));
  });
  return chart;
}
