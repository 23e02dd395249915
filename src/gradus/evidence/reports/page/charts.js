// Small charts: inline SVG at the host's own width, colors from CSS classes so that light and dark need no redrawing.
"use strict";

const html = (tag, attributes = {}, ...children) => build(document.createElement(tag), attributes, children);
const svg = (tag, attributes = {}, ...children) =>
  build(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);

function build(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return node;
}

const known = (value) => typeof value === "number" && Number.isFinite(value);
const clamp = (value, low, high) => Math.min(high, Math.max(low, value));

// Three figures of what three decimals would show as 0.000, in the form of the tables: 0.00123, 1.2e-05.
function small(size, figures) {
  const short = Number(size.toPrecision(figures));
  return short < 1e-4 ? short.toExponential().replace(/-(\d)$/, "-0$1") : String(short);
}

function write(value, digits = null, signed = false) {
  if (!known(value)) return "–";
  const size = Math.abs(value);
  const places = digits ?? (size >= 1000 || value === Math.trunc(value) ? 0 : size >= 100 ? 1 : size >= 1 ? 2 : 3);
  const text = size >= 1000 ? Math.round(size).toLocaleString("en-GB") : places && size >= 1e-12 && size < 10 ** (1 - places) ? small(size, places) : size.toFixed(places);
  const negative = value < 0 && Number(text) !== 0;
  return (negative ? "−" : signed && value > 0 ? "+" : "") + text;
}

function ticks(low, high, count, whole = false) {
  const raw = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(raw || 1));
  let step = [1, 2, 2.5, 5, 10].map((unit) => unit * power).find((unit) => unit >= raw) ?? power;
  if (whole) step = Math.max(1, Math.ceil(step));
  const marks = [];
  const places = step < 1e-4 ? 0 : (String(Number(step.toPrecision(3))).split(".")[1] ?? "").length;
  for (let index = Math.ceil(low / step - 1e-9); index * step <= high + step * 1e-6; index += 1) {
    const at = index * step;
    const text = step < 1e-4 && index !== 0 ? at.toExponential(1).replace("-", at < 0 ? "−" : "-") : write(at, Math.abs(at) >= 1000 ? null : Math.min(places, 5));
    marks.push({ at, text });
  }
  return marks;
}

function extent(values, limits = null) {
  const numbers = values.filter(known);
  let low = limits ? limits[0] : Math.min(...numbers);
  let high = limits ? limits[1] : Math.max(...numbers);
  if (!numbers.length && !limits) [low, high] = [0, 1];
  if (limits) {
    low = Math.min(low, ...numbers);
    high = Math.max(high, ...numbers);
  }
  if (low === high) {
    const pad = Math.abs(low) * 0.1;
    return pad ? [low - pad, high + pad] : [0, 1];
  }
  const pad = limits ? 0 : (high - low) * 0.06;
  return [low - pad, high + pad];
}

// Draw now, and again whenever the host's width changes.
function mount(host, draw) {
  let width = 0;
  const again = () => {
    const now = Math.floor(host.clientWidth);
    if (now > 0 && now !== width) {
      width = now;
      draw(width);
    }
  };
  new ResizeObserver(() => requestAnimationFrame(again)).observe(host);  // drawing in the observer itself would resize what it observes
  again();
  setTimeout(again); // a host that is put into the page later has no width yet, and observers wait for a frame to be painted
}

// Horizontal lines with their values on the left.
function levels(picture, frame, marks, up) {
  for (const { at, text } of marks) {
    picture.append(
      svg("line", { class: at === 0 ? "zero" : "grid", x1: frame.left, x2: frame.right, y1: up(at), y2: up(at) }),
      svg("text", { class: "tick", x: frame.left - 7, y: up(at) + 3.5, "text-anchor": "end" }, text),
    );
  }
}

const DASHES = ["", "7 3", "2 3", "9 3 2 3", "4 2", "1 3", "12 4"];
const color = (index) => `c${index % 7}`;
const dash = (index, many) => (many ? DASHES[index % DASHES.length] : "");

function path(points) {
  let open = false;
  return points
    .map(([x, y]) => {
      if (!known(y)) {
        open = false;
        return "";
      }
      const mark = open ? "L" : "M";
      open = true;
      return `${mark}${x.toFixed(1)} ${y.toFixed(1)}`;
    })
    .join("");
}

// spec: {series: [{name, x, y, smooth, dots}], marks: [{x, name}], limits, top, truth: {name: value}, height, label, xName, link, slots}
// top: where the axis ends, if some values lie far above the others; those are drawn at its end, with an arrow that says how far they go.
// link: {get(): index, set(index), on(listener)} ties the cursor to something outside, by index into x.
function lineChart(host, spec) {
  const many = spec.series.length > 1;
  const truth = spec.truth ?? {};
  const legend = html("div", { class: "legend" });
  const stage = html("div", { class: "stage", tabindex: spec.link ? null : "0", role: "img", "aria-label": spoken(spec) });
  host.append(legend, stage);
  const readings = spec.series.map((series, index) => {
    const value = html("span", { class: "reading" });
    const sample = svg("svg", { class: `key ${color(index)}`, width: 22, height: 10, "aria-hidden": "true" },
      series.dots ? svg("circle", { cx: 11, cy: 5, r: 3.5, class: "dot" }) :
        svg("line", { x1: 1, x2: 21, y1: 5, y2: 5, class: "line", "stroke-dasharray": dash(index, many) }));
    const aim = known(truth[series.name]) ? html("span", { class: "aim" }, `truth ${write(truth[series.name])}`) : null;
    legend.append(html("span", { class: "entry" }, sample, series.name, value, aim));
    return value;
  });
  const place = html("span", { class: "place" });
  if (!spec.link) legend.append(place);

  const all = spec.series.flatMap((series) => [...series.y, ...(series.smooth ?? [])]);
  const most = Math.max(...all.filter(known));
  const cut = known(spec.top) && most > spec.top;
  const [low, high] = extent([...(cut ? all.map((value) => (known(value) ? Math.min(value, spec.top) : value)) : all), ...Object.values(truth)], spec.limits);
  const xs = [...new Set(spec.series.flatMap((series) => series.x))].sort((a, b) => a - b);
  const [first, last] = [xs[0] ?? 0, xs[xs.length - 1] ?? 1];
  const [from, to] = spec.slots ? [0.5, spec.slots + 0.5] : [first, last];  // turns have a width, as in bars and strips
  let scale = null;
  let cursor = null;
  let at = null;

  const read = (x) => {
    at = x;
    spec.series.forEach((series, index) => {
      const value = x === null ? lastKnown(thick(series)) : series.y[nearest(series.x, x)];
      readings[index].textContent = write(value);
    });
    place.textContent = x === null ? "" : `${spec.xName ?? "step"} ${write(x)}`;
    if (cursor && scale) {
      cursor.setAttribute("visibility", x === null ? "hidden" : "visible");
      if (x !== null) for (const end of ["x1", "x2"]) cursor.setAttribute(end, scale(x).toFixed(1));
    }
  };
  const point = (event) => {
    const box = stage.getBoundingClientRect();
    const share = (event.clientX - box.left - 46) / Math.max(1, box.width - 46 - 8);
    return xs[nearest(xs, from + clamp(share, 0, 1) * (to - from))];
  };
  if (spec.link) {
    stage.addEventListener("pointerdown", (event) => spec.link.set(nearest(xs, point(event))));
    spec.link.on((index) => read(xs[clamp(index, 0, xs.length - 1)]));
  } else {
    stage.addEventListener("pointermove", (event) => read(point(event)));
    stage.addEventListener("pointerleave", () => read(null));
    stage.addEventListener("blur", () => read(null));
    stage.addEventListener("keydown", (event) => {
      const step = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!step) return;
      event.preventDefault();
      read(xs[clamp((at === null ? (step > 0 ? -1 : xs.length) : xs.indexOf(at)) + step, 0, xs.length - 1)]);
    });
  }

  mount(stage, (width) => {
    const named = !spec.link;  // the turns of an episode have a slider
    const height = (spec.height ?? 150) + (named ? 13 : 0);
    const frame = { left: 46, right: width - 8, top: 8, bottom: height - (named ? 35 : 22) };
    scale = (x) => frame.left + ((x - from) / (to - from || 1)) * (frame.right - frame.left);
    const up = (y) => frame.bottom - ((Math.min(y, high) - low) / (high - low)) * (frame.bottom - frame.top);
    const picture = svg("svg", { width, height, "aria-hidden": "true" });
    levels(picture, frame, ticks(low, high, height < 100 ? 2 : 4), up);
    if (named) picture.append(svg("text", { class: "tick", x: frame.right, y: height - 5, "text-anchor": "end" }, `${spec.xName ?? "step"} →`));
    if (cut) picture.append(svg("text", { class: "tick", x: frame.right, y: frame.top + 4, "text-anchor": "end" }, `↑ up to ${write(most)}`));
    for (const { at: tick, text } of ticks(first, last, Math.max(2, Math.floor(width / 60)), xs.every(Number.isInteger))) {
      picture.append(svg("text", { class: "tick", x: scale(tick), y: frame.bottom + 16, "text-anchor": "middle" }, text));
    }
    for (const [place, mark] of (spec.marks ?? []).entries()) {  // names of short stages stand below each other
      picture.append(
        svg("line", { class: "mark", x1: scale(mark.x), x2: scale(mark.x), y1: frame.top, y2: frame.bottom }),
        svg("text", { class: "tick", x: scale(mark.x) + 3, y: frame.top + 8 + 12 * (place % 3) }, mark.name),
      );
    }
    spec.series.forEach((series, index) => {
      const points = series.x.map((x, place) => [scale(x), known(series.y[place]) ? up(series.y[place]) : null]);
      const group = svg("g", { class: color(index) });
      if (known(truth[series.name])) {
        const y = up(truth[series.name]);
        group.append(svg("line", { class: "truth", x1: frame.left, x2: frame.right, y1: y, y2: y }));
      }
      if (series.dots) {
        const radius = clamp((frame.right - frame.left) / points.length / 2, 1.2, 3.5);  // many dots would hide the lines
        for (const [x, y] of points) if (known(y)) group.append(svg("circle", { class: radius < 3.5 ? "dot dense" : "dot", cx: x, cy: y, r: radius }));
      } else {
        const smooth = series.smooth?.length ? series.x.map((x, place) => [scale(x), known(series.smooth[place]) ? up(series.smooth[place]) : null]) : null;
        group.append(svg("path", { class: smooth ? "line faint" : "line", d: path(points), "stroke-dasharray": smooth ? "" : dash(index, many) }));
        if (smooth) group.append(svg("path", { class: "line", d: path(smooth), "stroke-dasharray": dash(index, many) }));
        if (points.filter(([, y]) => known(y)).length === 1) {
          for (const [x, y] of points) if (known(y)) group.append(svg("circle", { class: "dot", cx: x, cy: y, r: 3.5 }));
        }
      }
      picture.append(group);
    });
    const others = Object.entries(truth).filter(([name]) => !spec.series.some((series) => series.name === name));
    for (const [name, value] of others) {
      picture.append(
        svg("line", { class: "truth neutral", x1: frame.left, x2: frame.right, y1: up(value), y2: up(value) }),
        svg("text", { class: "tick", x: frame.right, y: up(value) - 4, "text-anchor": "end" }, name),
      );
    }
    cursor = svg("line", { class: "cursor", y1: frame.top - 4, y2: frame.bottom, visibility: "hidden" });
    picture.append(cursor);
    stage.replaceChildren(picture);
    read(spec.link ? xs[clamp(spec.link.get(), 0, xs.length - 1)] : null);
  });
}

function nearest(values, x) {
  let best = 0;
  values.forEach((value, index) => {
    if (Math.abs(value - x) < Math.abs(values[best] - x)) best = index;
  });
  return best;
}

// What the swatch of a line stands for: the running mean where there is one. A single step says little.
const thick = (series) => (series.smooth?.length ? series.smooth : series.y);

function lastKnown(values) {
  for (let index = values.length - 1; index >= 0; index -= 1) if (known(values[index])) return values[index];
  return null;
}

function spoken(spec) {
  const parts = spec.series.map((series) => {
    const values = thick(series).filter(known);
    return `${series.name} from ${write(values[0])} to ${write(values[values.length - 1])}`;
  });
  const stages = (spec.marks ?? []).map((mark) => `${mark.name} begins at ${write(mark.x)}`);
  return `${spec.label ?? "Chart"}: ${[...parts, ...stages].join("; ")}`;
}

// The width of a text in pixels, in the font of a chart's names.
const pencil = document.createElement("canvas").getContext("2d");
function textWidth(text, strong = false) {
  pencil.font = `${strong ? 700 : 400} 12.5px ${getComputedStyle(document.body).fontFamily}`;
  return pencil.measureText(text).width;
}

// Both ends of a name tell it from others: a model's address begins alike, and -greedy stands at the end.
function shortened(name, room, strong = false) {
  let text = name;
  for (let most = name.length - 1; textWidth(text, strong) > room && most > 3; most -= 1) {
    const end = Math.floor((most - 1) / 3);
    text = `${name.slice(0, most - 1 - end)}…${name.slice(name.length - end)}`;
  }
  return text;
}

// rows: [{name, mean, low, high, strong}], one dot with its interval each, on the axis `range`. What leaves it ends in an arrow there.
function dotChart(host, { rows, range, label }) {
  const said = rows.filter((row) => known(row.mean)).map((row) => `${row.name} ${write(row.mean, 3)}`);
  const stage = html("div", { class: "stage", role: "img", "aria-label": `${label}: ${said.join(", ")}` });
  host.append(stage);
  mount(stage, (width) => {
    const names = clamp(Math.max(...rows.map((row) => textWidth(row.name, row.strong))) + 14, 60, width * 0.42);
    const [low, high] = range;
    const frame = { left: names, right: width - 52, top: 6, row: 24 };
    const height = frame.top + rows.length * frame.row + 22;
    const x = (value) => frame.left + ((value - low) / (high - low)) * (frame.right - frame.left);
    const picture = svg("svg", { width, height, "aria-hidden": "true" });
    for (const { at: tick, text } of ticks(low, high, Math.max(3, Math.floor((frame.right - frame.left) / 60)))) {
      picture.append(
        svg("line", { class: tick === 0 ? "zero" : "grid", x1: x(tick), x2: x(tick), y1: frame.top, y2: height - 18 }),
        svg("text", { class: "tick", x: x(tick), y: height - 5, "text-anchor": "middle" }, text),
      );
    }
    rows.forEach((row, index) => {
      const y = frame.top + (index + 0.5) * frame.row;
      picture.append(svg("text", { class: row.strong ? "name strong" : "name", x: frame.left - 10, y: y + 4, "text-anchor": "end" }, shortened(row.name, frame.left - 12, row.strong), svg("title", {}, row.name)));
      if (!known(row.mean)) {
        picture.append(svg("text", { class: "tick", x: frame.left + 4, y: y + 4 }, "not defined"));
        return;
      }
      const group = svg("g", { class: row.strong ? "c1" : "c0" });
      const inside = row.mean >= low && row.mean <= high;
      if (known(row.low) && known(row.high) && row.high > low && row.low < high) {
        group.append(svg("line", { class: "whisker", x1: x(Math.max(row.low, low)), x2: x(Math.min(row.high, high)), y1: y, y2: y }));
      }
      for (const [leaves, at, way] of [[Math.min(row.mean, row.low ?? row.mean) < low, frame.left, -1], [Math.max(row.mean, row.high ?? row.mean) > high, frame.right, 1]]) {
        if (leaves) group.append(svg("path", { class: "dot", d: `M${at + 5 * way} ${y}l${-6 * way} -4v8z` }));
      }
      if (inside) group.append(row.strong
        ? svg("rect", { class: "dot", x: x(row.mean) - 4.5, y: y - 4.5, width: 9, height: 9, transform: `rotate(45 ${x(row.mean)} ${y})` })
        : svg("circle", { class: "dot", cx: x(row.mean), cy: y, r: 4.5 }));
      picture.append(group, svg("text", { class: row.strong ? "value strong" : "value", x: width - 2, y: y + 4, "text-anchor": "end" }, write(row.mean, 3)));
    });
    stage.replaceChildren(picture);
  });
}

// One bar per turn, up or down from 0; `link` as in lineChart.
function barChart(host, { values, link, label }) {
  const reading = html("span", { class: "reading" });
  const stage = html("div", { class: "stage", role: "img", "aria-label": `${label}: sum ${write(values.filter(known).reduce((a, b) => a + b, 0))}` });
  host.append(html("div", { class: "legend" }, html("span", { class: "entry" }, "at this turn", reading)), stage);
  let band = null;
  let left = null;
  const show = (index) => {
    reading.textContent = write(values[index], null, true);
    if (band && left) {
      band.setAttribute("x", left(index) - 1);
    }
  };
  stage.addEventListener("pointerdown", (event) => {
    const box = stage.getBoundingClientRect();
    link.set(clamp(Math.floor(((event.clientX - box.left - 46) / Math.max(1, box.width - 54)) * values.length), 0, values.length - 1));
  });
  link.on(show);
  mount(stage, (width) => {
    const height = 72;
    const [low, high] = extent([...values, 0]);
    const frame = { left: 46, right: width - 8, top: 4, bottom: height - 6 };
    const slot = (frame.right - frame.left) / values.length;
    left = (index) => frame.left + index * slot;
    const up = (y) => frame.bottom - ((y - low) / (high - low)) * (frame.bottom - frame.top);
    const picture = svg("svg", { width, height, "aria-hidden": "true" });
    band = svg("rect", { class: "band", y: 0, width: slot + 2, height });
    picture.append(band);
    levels(picture, frame, ticks(low, high, 2), up);
    values.forEach((value, index) => {
      if (!known(value)) return;
      const [top, bottom] = [Math.min(up(value), up(0)), Math.max(up(value), up(0))];
      picture.append(svg("rect", { class: value < 0 ? "bar down" : "bar up", x: left(index) + slot * 0.14, y: top, width: slot * 0.72, height: Math.max(0.8, bottom - top) }));
    });
    stage.replaceChildren(picture);
    show(link.get());
  });
}

// A category per turn as a row of cells; colors repeat hatched after seven.
// `kinds` is the order that gives a label its color: the same in every strip that is compared with this one.
function stripChart(host, { labels, link, label, kinds, legend = true }) {
  const stage = html("div", { class: "stage", role: "img", "aria-label": `${label}: ${labels.join(", ")}` });
  const reading = html("span", { class: "reading word" });
  const keys = kinds.filter((kind) => labels.includes(kind)).map((kind) => html("span", { class: "entry" }, cell(kinds.indexOf(kind), 12, 12), kind || "–"));
  if (legend) host.append(html("div", { class: "legend" }, html("span", { class: "entry" }, reading), ...keys));
  host.append(stage);
  let marks = [];
  const show = (index) => {
    reading.textContent = labels[index] ?? "–";
    marks.forEach((mark, place) => mark.classList.toggle("chosen", place === index));
  };
  stage.addEventListener("pointerdown", (event) => {
    const box = stage.getBoundingClientRect();
    const margin = legend ? 46 : 0;
    link.set(clamp(Math.floor(((event.clientX - box.left - margin) / Math.max(1, box.width - margin - (legend ? 8 : 0))) * labels.length), 0, labels.length - 1));
  });
  link.on(show);
  mount(stage, (width) => {
    const margin = legend ? 46 : 0;
    const slot = (width - margin - (legend ? 8 : 0)) / labels.length;
    const height = legend ? 30 : 18;
    const picture = svg("svg", { width, height, "aria-hidden": "true" });
    marks = labels.map((kind, index) => {
      const mark = cell(kinds.indexOf(kind), Math.max(1, slot - 1), height - 4);
      mark.setAttribute("x", margin + index * slot);
      mark.setAttribute("y", 2);
      mark.append(svg("title", {}, `${index + 1}: ${kind}`));
      picture.append(mark);
      return mark;
    });
    stage.replaceChildren(picture);
    show(link.get());
  });
}

function cell(kind, width, height) {
  const mark = svg("svg", { class: `cell c${kind % 7}`, width, height });
  mark.append(svg("rect", { width, height, class: "fill" }));
  const rounds = Math.floor(kind / 7);
  if (rounds > 0) for (let at = -height; at < width; at += 5) mark.append(svg("line", { class: "hatch", x1: at, y1: height, x2: at + height, y2: 0 }));
  return mark;
}

// points: [{name, x, y, strong}]
function scatterChart(host, { points, xLabel, yLabel }) {
  const stage = html("div", { class: "stage", role: "img", "aria-label": `${yLabel} against ${xLabel} for ${points.map((point) => point.name).join(", ")}` });
  host.append(stage);
  mount(stage, (width) => {
    const height = Math.min(360, Math.max(240, width * 0.5));
    const frame = { left: 50, right: width - 12, top: 10, bottom: height - 38 };
    const [x0, x1] = extent(points.map((point) => point.x));
    const [y0, y1] = extent(points.map((point) => point.y));
    const x = (value) => frame.left + ((value - x0) / (x1 - x0)) * (frame.right - frame.left);
    const y = (value) => frame.bottom - ((value - y0) / (y1 - y0)) * (frame.bottom - frame.top);
    const picture = svg("svg", { width, height, "aria-hidden": "true" });
    for (const { at: tick, text } of ticks(x0, x1, Math.max(2, Math.floor(width / 110)))) {
      picture.append(svg("line", { class: "grid", x1: x(tick), x2: x(tick), y1: frame.top, y2: frame.bottom }),
        svg("text", { class: "tick", x: x(tick), y: frame.bottom + 15, "text-anchor": "middle" }, text));
    }
    levels(picture, frame, ticks(y0, y1, 5), y);
    picture.append(svg("text", { class: "axis", x: frame.right, y: height - 6, "text-anchor": "end" }, `${xLabel} →`),
      svg("text", { class: "axis", x: frame.left + 4, y: frame.top + 8 }, `↑ ${yLabel}`));
    const dots = points.map((point) => ({ ...point, px: x(point.x), py: y(point.y) }));
    for (const dot of dots) {
      picture.append(svg("g", { class: dot.strong ? "c1" : "c0" }, svg("circle", { class: "dot", cx: dot.px, cy: dot.py, r: 4.5 }, svg("title", {}, dot.name))));
    }
    // A name stands where it hides no point and no other name; the honest policies choose first.
    const taken = dots.map((dot) => ({ left: dot.px - 5, right: dot.px + 5, top: dot.py - 5, bottom: dot.py + 5 }));
    for (const dot of [...dots].sort((a, b) => (a.strong ? 1 : 0) - (b.strong ? 1 : 0) || b.y - a.y)) {
      const wide = dot.name.length * 6.7;
      const places = [[dot.px + 8, dot.py + 4], [dot.px - 8 - wide, dot.py + 4], [dot.px - wide / 2, dot.py - 9], [dot.px - wide / 2, dot.py + 17]];
      for (const [left, base] of places) {
        const box = { left, right: left + wide, top: base - 10, bottom: base + 2 };
        const free = taken.every((other) => box.right < other.left || box.left > other.right || box.bottom < other.top || box.top > other.bottom);
        if (!free || box.left < frame.left || box.right > frame.right + 8 || box.top < 0 || box.bottom > frame.bottom) continue;
        taken.push(box);
        picture.append(svg("text", { class: "name", x: left < dot.px - wide ? dot.px - 8 : left, y: base, "text-anchor": left < dot.px - wide ? "end" : "start" }, dot.name));
        break;
      }
    }
    stage.replaceChildren(picture);
  });
}
