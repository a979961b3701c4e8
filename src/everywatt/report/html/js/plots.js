// Small plots that need no time axis, drawn as SVG, each with its table.
"use strict";

// About five round steps from nothing, or from the lowest value, to the highest.
everywatt.ticks = function (low, high) {
  const raw = (high - low || 1) / 5, ten = Math.pow(10, Math.floor(Math.log10(raw)));
  const step = [1, 2, 5, 10].map((k) => k * ten).find((k) => k >= raw);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step) found.push(Number(at.toPrecision(12)));
  return found;
};

// Where values are drawn between two places, with round ticks: from nothing on, or only where they are (tight); whole
// numbers; logarithmic where that is wanted and they span decades.
everywatt.axis = function (values, from, to, { logs = false, tight = false, whole = false } = {}) {
  const low = Math.min(...values), high = Math.max(...values);
  if (logs && low > 0 && high / low > 50) {
    const first = Math.ceil(Math.log10(low)), count = Math.floor(Math.log10(high)) - first + 1;
    return { log: ", logarithmic", place: (v) => from + (to - from) * Math.log(v / low) / Math.log(high / low), ticks: Array.from({ length: count }, (_, i) => 10 ** (first + i)) };
  }
  const room = whole ? 1 : (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
  const [a, b] = tight ? [low - room, high + room] : [Math.min(0, low), high * 1.05 || 1];
  return { log: "", place: (v) => from + (to - from) * (v - a) / (b - a), ticks: everywatt.ticks(a, b).filter((tick) => !whole || Number.isInteger(tick)) };
};

// points: [{x, y, xLow, xHigh, yLow, yHigh, name, label, colour, cross, choose}]; joined by a line, or named by colours,
// where that is asked for. `label` is written beside the point, `choose` is called when it is clicked.
everywatt.scatter = function (label, points, { xLabel, yLabel, joined = false, named = false, size = 4, logs = false, tight = false, whole = false, wide = 640, tall = 300, table = true }) {
  const { svg, element } = everywatt, theme = everywatt.theme(), W = wide, H = tall, left = 62, right = 18, top = 14, bottom = 44;
  const x = everywatt.axis(points.flatMap((p) => [p.x, p.xLow ?? p.x, p.xHigh ?? p.x]), left, W - right, { logs, tight, whole });
  const y = everywatt.axis(points.flatMap((p) => [p.y, p.yLow ?? p.y, p.yHigh ?? p.y]), H - bottom, top, { logs, tight });
  const px = x.place, py = y.place;
  const text = (x, y, words, more) => svg("text", { x, y, fill: theme.text, "font-size": 12, ...more }, words);
  const grid = [
    ...x.ticks.map((at) => [svg("line", { x1: px(at), x2: px(at), y1: top, y2: H - bottom, stroke: theme.grid }), text(px(at), H - bottom + 16, everywatt.number(at), { "text-anchor": "middle" })]),
    ...y.ticks.map((at) => [svg("line", { x1: left, x2: W - right, y1: py(at), y2: py(at), stroke: theme.grid }), text(left - 6, py(at) + 4, everywatt.number(at), { "text-anchor": "end" })]),
  ].flat();
  const colourOf = (i) => points[i].colour || theme.palette[named ? i % theme.palette.length : 0];
  const mark = (p, i) => {
    const words = svg("title", {}, (p.name || "") + " " + everywatt.number(p.x) + ", " + everywatt.number(p.y));
    const made = p.cross ? svg("path", { d: "M" + (px(p.x) - size) + " " + (py(p.y) - size) + "l" + 2 * size + " " + 2 * size + "m0-" + 2 * size + "l-" + 2 * size + " " + 2 * size, stroke: colourOf(i), "stroke-width": 2, fill: "none" }, words)
      : svg("circle", { cx: px(p.x), cy: py(p.y), r: size, fill: colourOf(i), "fill-opacity": points.length > 60 ? 0.5 : 1 }, words);
    if (p.choose) made.addEventListener("click", p.choose);
    return made;
  };
  // A name is right of its dot, or left where it would meet the edge or the name of the next dot to the right.
  // There is room for the larger letters of a small screen.
  const [letter, line, gap] = W > 500 ? [12, 26, 7] : [7, 16, 4];
  const wordy = (p) => letter * String(p.label).length + size + gap + 4, meets = (p) => points.some((o) => o.label && o !== p && px(o.x) > px(p.x) && px(o.x) < px(p.x) + wordy(p) && Math.abs(py(o.y) - py(p.y)) < line);
  const side = (p) => px(p.x) + wordy(p) > W || (meets(p) && px(p.x) - wordy(p) > left) ? -1 : 1;
  const dots = points.map((p, i) => {
    const colour = colourOf(i), whisker = (a, b) => svg("line", { x1: a[0], y1: a[1], x2: b[0], y2: b[1], stroke: colour, "stroke-width": 1.5, class: "interval" });
    return [
      p.yLow !== undefined && p.yLow !== null && p.yHigh !== null ? whisker([px(p.x), py(p.yLow)], [px(p.x), py(p.yHigh)]) : null,
      p.xLow !== undefined && p.xLow !== null && p.xHigh !== null ? whisker([px(p.xLow), py(p.y)], [px(p.xHigh), py(p.y)]) : null,
      mark(p, i),
      p.label ? text(px(p.x) + side(p) * (size + gap), py(p.y) + (p.xLow === undefined ? 4 : -6), p.label, { fill: theme.strong, "text-anchor": side(p) > 0 ? "start" : "end", class: "label" }) : null,
    ];
  });
  const path = joined && points.length > 1 ? svg("polyline", { points: points.map((p) => px(p.x) + "," + py(p.y)).join(" "), fill: "none", stroke: theme.palette[0], "stroke-width": 1.5 }) : null;
  return element("figure.small-plot", {}, element("figcaption", {}, element("h3", {}, label)),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label, class: W > 500 ? "wide" : "" }, grid, path, dots,
      text((left + W - right) / 2, H - 8, xLabel + x.log, { "text-anchor": "middle" }), text(14, (top + H - bottom) / 2, yLabel + y.log, { "text-anchor": "middle", transform: `rotate(-90 14 ${(top + H - bottom) / 2})` })),
    named ? element("ul.key", {}, points.map((p, i) => element("li", {}, everywatt.swatch(colourOf(i)), p.name))) : null,
    table ? everywatt.plotTable(label, [...(named ? [""] : []), xLabel, yLabel], points.map((p) => [...(named ? [p.name] : []), everywatt.number(p.x), everywatt.number(p.y) + (p.yLow === undefined || p.yLow === null || p.yHigh === null ? "" : " (" + everywatt.number(p.yLow) + " … " + everywatt.number(p.yHigh) + ")")])) : null);
};

// What is drawn, as rows: every so many where there are very many.
everywatt.plotTable = function (label, heads, rows) {
  const { element } = everywatt, step = Math.ceil(rows.length / 200) || 1;
  return element("details", {}, element("summary", {}, "Table of " + label[0].toLowerCase() + label.slice(1)),
    everywatt.table(label, heads, rows.filter((_, i) => i % step === 0), heads.map((_, i) => i).slice(heads[0] === "" ? 1 : 0)),
    step > 1 ? element("p.about", {}, "one of every " + step) : null);
};

everywatt.histogram = function (label, found, xLabel) {
  const { svg, element } = everywatt, theme = everywatt.theme(), W = 640, H = 240, left = 46, right = 18, top = 24, bottom = 42;
  const { edges, counts } = found, x0 = edges[0], x1 = edges[edges.length - 1], most = Math.max(...counts);
  const px = (x) => left + (x - x0) / (x1 - x0) * (W - left - right), py = (y) => H - bottom - y / most * (H - top - bottom);
  const text = (x, y, words, more) => svg("text", { x, y, fill: theme.text, "font-size": 12, ...more }, words);
  const bars = counts.map((count, i) => svg("rect", { x: px(edges[i]) + 1, y: py(count), width: Math.max(1, px(edges[i + 1]) - px(edges[i]) - 2), height: H - bottom - py(count), fill: theme.palette[0] },
    svg("title", {}, count + " queries, " + everywatt.number(edges[i]) + " … " + everywatt.number(edges[i + 1]))));
  const axis = everywatt.ticks(x0, x1).map((x) => text(px(x), H - bottom + 16, everywatt.number(x), { "text-anchor": "middle" }));
  const middle = svg("line", { x1: px(found.median), x2: px(found.median), y1: top, y2: H - bottom, stroke: theme.strong, "stroke-dasharray": "4 3" });
  return element("figure.small-plot", {}, element("figcaption", {}, element("h3", {}, label)),
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": label, class: "wide" }, bars, middle, axis,
      text(left - 6, top + 10, String(most), { "text-anchor": "end" }), text(left - 6, H - bottom, "0", { "text-anchor": "end" }),
      text(14, (top + H - bottom) / 2, "queries", { "text-anchor": "middle", transform: `rotate(-90 14 ${(top + H - bottom) / 2})` }), text(px(found.median), top - 8, "median " + everywatt.number(found.median), { "text-anchor": px(found.median) < W / 2 ? "start" : "end" }), text((left + W - right) / 2, H - 6, xLabel, { "text-anchor": "middle" })),
    everywatt.plotTable(label, ["from", "to", "queries"], counts.map((count, i) => [everywatt.number(edges[i]), everywatt.number(edges[i + 1]), String(count)])));
};
