// Charts over one common window of time: zoom one and all follow.
"use strict";

// Okabe and Ito's colours, which people with any kind of colour vision can tell apart, darker on white, lighter on black.
everywatt.palettes = {
  light: ["#0072b2", "#d55e00", "#007a5a", "#b0457f", "#8a6d00", "#3b8fc4", "#7a4b9c", "#5f6b7a"],
  dark: ["#56b4e9", "#ff9a4d", "#2fd0a0", "#f08fc0", "#f0d54a", "#8ecbff", "#c9a2f2", "#a9b4c2"],
};
everywatt.dashes = [[], [6, 4], [2, 3], [10, 3, 2, 3]];

everywatt.theme = function () {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  const dark = value("--scheme") === "dark";
  return {
    dark,
    palette: everywatt.palettes[dark ? "dark" : "light"],
    text: value("--quiet"), strong: value("--text"), grid: value("--grid"), card: value("--card"),
    font: "12px " + value("--font"), small: "11px " + value("--font"),
  };
};

// Places in the palette: what most machines have is always at the same place, so that a device has one colour on every
// page, live or not; then cards by number, packages, the rest, the total last, at places that are free.
everywatt.usualDevices = ["gpu.0", "cpu.0", "host", "gpu.1", "cpu.1"];
everywatt.devicePlaces = function (names) {
  const rank = (name) => [/(^|[ /])gpu\./, /(^|[ /])cpu\./].findIndex((kind) => kind.test(name));
  const key = (name) => name === "total" ? 3 : rank(name) < 0 ? 2 : rank(name);
  const usual = everywatt.usualDevices, places = new Map(usual.flatMap((name, i) => names.includes(name) ? [[name, i]] : []));
  const free = [...Array(usual.length + names.length).keys()].filter((place) => !names.includes(usual[place]));
  const others = [...new Set(names)].filter((name) => !places.has(name)).sort((a, b) => key(a) - key(b) || a.localeCompare(b, "en", { numeric: true }));
  return new Map([...places, ...others.map((name, i) => [name, free[i]])]);
};

everywatt.faint = (colour, share) => colour + Math.round(share * 255).toString(16).padStart(2, "0");

// A time in a window of `span` seconds: all of a window alike, in seconds below two minutes, else as minutes and hours.
everywatt.seconds = function (t, span) {
  const decimals = span > 200 ? 0 : Math.min(6, Math.max(0, Math.ceil(2 - Math.log10(Math.max(span, 1e-9)))));
  if (Math.abs(t) < 1 && span < 0.1) return (1000 * t).toFixed(Math.max(0, decimals - 3)) + " ms";
  if (span < 120) return t.toFixed(decimals) + " s";
  const whole = Math.round(Math.abs(t)), h = Math.floor(whole / 3600), m = Math.floor(whole / 60) % 60, s = whole % 60;
  const two = (x) => String(x).padStart(2, "0");
  return (t < 0 && whole ? "−" : "") + (h ? h + ":" + two(m) : m) + ":" + two(s);
};

// Between two ticks of a time axis: decimal below a minute, then what divides hours and days.
everywatt.timeSteps = [...[-6, -5, -4, -3, -2, -1, 0, 1].flatMap((power) => [1, 2, 5].map((digit) => Number(digit + "e" + power))).filter((step) => step < 30),
  ...[0.5, 1, 2, 5, 10, 15, 30, 60, 120, 240, 360, 720, 1440, 2880, 7200, 14400, 43200].map((minutes) => 60 * minutes)];

// With its unit a figure, to four digits; without one a tick or a cell, as short as it can be.
everywatt.number = function (value, unit) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  const size = Math.abs(value), figure = unit && !Number.isInteger(value);
  const digits = size >= 1000 ? 0 : size >= 100 ? 1 : size >= 10 || (!figure && size >= 1) ? 2 : size >= 1 ? 3 : 4;
  return value.toLocaleString("en", { minimumFractionDigits: figure ? digits : 0, maximumFractionDigits: digits, useGrouping: false }).replace("-", "−") + (unit ? " " + unit : "");
};

// A figure that follows from an energy, with the digits that the interval of the energy leaves it.
everywatt.rounded = function (value, unit, energy) {
  const half = energy.joules ? Math.abs(value * (energy.high - energy.low) / 2 / energy.joules) : 0;
  const digits = half > 1e-6 * Math.abs(value) ? Math.max(0, 1 - Math.floor(Math.log10(half))) : Infinity;
  const shown = everywatt.number(value, unit), now = (shown.split(" ")[0].split(".")[1] || "").length;
  if (digits >= now) return shown;
  return value.toFixed(digits) + " " + unit;
};

// The window of time that all charts of a run show, and who wants to know when it moves.
everywatt.Window = class {
  // From low to high is all there is; home is what is shown at first.
  constructor(low, high, home = [low, high]) {
    this.whole = [low, high];
    this.home = home;
    [this.a, this.b] = home;
    this.listeners = [];
  }

  set(a, b) {
    const [low, high] = this.whole, shortest = Math.min(1e-5, high - low);
    let length = Math.min(Math.max(b - a, shortest), high - low);
    this.a = Math.min(Math.max(a, low), high - length);
    this.b = this.a + length;
    for (const listener of this.listeners) listener();
  }

  zoom(factor, at) {
    const centre = at === undefined ? (this.a + this.b) / 2 : at;
    this.set(centre - (centre - this.a) * factor, centre + (this.b - centre) * factor);
  }

  move(share) {
    const by = (this.b - this.a) * share;
    this.set(this.a + by, this.b + by);
  }

  reset() { this.set(...this.home); }

  // Whether it shows the whole run, to less than a pixel.
  atHome() {
    const [a, b] = this.home, slack = (b - a) * 1e-4;
    return Math.abs(this.a - a) < slack && Math.abs(this.b - b) < slack;
  }

  key(event) {
    const keys = {
      ArrowLeft: () => this.move(-0.2), ArrowRight: () => this.move(0.2),
      "+": () => this.zoom(0.5), "=": () => this.zoom(0.5), "-": () => this.zoom(2),
      ArrowUp: () => this.zoom(0.5), ArrowDown: () => this.zoom(2), "0": () => this.reset(), Home: () => this.reset(),
    };
    if (!keys[event.key] || event.ctrlKey || event.metaKey || event.altKey) return false;
    event.preventDefault();
    keys[event.key]();
    return true;
  }
};

everywatt.Chart = class {
  // about: a chart of the document; lines: its Line objects; colours: place in the palette by device
  constructor(about, lines, view, box, colours, bands) {
    Object.assign(this, { about, lines, view, box, colours, bands });
    this.shown = lines.map((line) => line.about.shown);
    this.plot = null;
    this.values = [];
    view.listeners.push(() => this.refresh());
    new ResizeObserver(() => this.resize()).observe(box);
  }

  visible() { return this.lines.map((_, i) => i).filter((i) => this.shown[i]); }

  colour(i, theme) {
    const place = this.colours(this.lines[i].about);
    return theme.palette[place % theme.palette.length];
  }

  // Further lines of a device have its colour, dashed; so have those beyond the palette, whose colours come again.
  dash(i) {
    const place = this.colours(this.lines[i].about), before = this.lines.slice(0, i).filter((line) => this.colours(line.about) === place).length;
    return everywatt.dashes[(before + Math.floor(place / everywatt.palettes.light.length)) % everywatt.dashes.length];
  }

  // On paper that of A4 within its margins, in pixels of CSS: a browser lays a page out for paper without saying so.
  width() { return Math.min(Math.max(260, Math.floor(this.box.clientWidth)), matchMedia("print").matches ? 680 : Infinity); }

  most() { return Math.max(120, Math.floor(this.width() * 1.5 / Math.max(1, this.visible().length / 4))); }

  // One x axis for the means of all lines. Lowest and highest are drawn beside uPlot, in drawRanges.
  data() {
    const { a, b } = this.view;
    this.slices = this.visible().map((i) => this.lines[i].between(a, b, this.most()));
    if (!this.slices.length) return [[a, b]];
    const joined = uPlot.join(this.slices.map((slice) => [slice.t, slice.mean]));
    // uPlot draws on across ticks of other lines, where a line has no value; inside a hole, which ends in null, it must not.
    for (const values of joined.slice(1)) for (let i = values.length - 2; i >= 0; i--) if (values[i] === undefined && values[i + 1] === null) values[i] = null;
    return joined;
  }

  exact() { return this.slices.every((slice) => slice.exact); }

  lanes() {
    if (!this.bands || !this.bands.bands.length) return 0;
    return Math.min(4, 1 + this.deepest());
  }

  deepest() { return this.bands.bands.reduce((most, band) => Math.max(most, band[3]), 0); }

  options() {
    const theme = everywatt.theme();
    const series = [{}];
    for (const i of this.visible()) {
      const colour = this.colour(i, theme), held = this.lines[i].held;
      const paths = held ? uPlot.paths.stepped({ align: -1 }) : uPlot.paths.linear();
      series.push({ stroke: colour, width: 1.6, paths, dash: this.dash(i), points: { show: !held, size: 4 } });
    }
    const axis = { stroke: theme.text, grid: { stroke: theme.grid, width: 1 }, ticks: { stroke: theme.grid, width: 1 }, font: theme.font };
    return {
      width: this.width(), height: this.height(), series,
      padding: [8 + this.lanes() * 19, 32, 0, 0],
      legend: { show: false },
      cursor: {
        sync: { key: "everywatt", setSeries: false }, drag: { x: true, y: false, setScale: false },
        points: { show: false }, focus: { prox: -1 }, // they would lie at the ticks beside the crosshair
      },
      scales: { x: { time: false, range: () => [this.view.a, this.view.b] }, y: { range: () => this.range() } },
      axes: [
        { ...axis, size: 34, space: 70, incrs: everywatt.timeSteps, values: (u, ticks) => ticks.map((t) => this.time(t, this.view.b - this.view.a)) },
        { ...axis, size: 60, values: (u, ticks) => ticks.map((v) => everywatt.number(v)) },
      ],
      hooks: {
        drawClear: [(u) => this.drawBands(u, theme)],
        drawAxes: [(u) => this.drawRanges(u, theme)],
        draw: [(u) => this.drawLanes(u, theme)],
        setSelect: [(u) => this.selected(u)],
        setCursor: [(u) => this.cursor(u)],
      },
    };
  }

  // How an instant is written where the window is `span` seconds long.
  time(t, span) { return everywatt.seconds(t, span); }

  height() {
    const base = this.about.id === "power" ? 300 : 170;
    return (this.width() < 520 ? base * 0.85 : base) + this.lanes() * 19;
  }

  // Of the y axis: all that is drawn, highest and lowest too.
  range() {
    let low = Infinity, high = -Infinity;
    for (const slice of this.slices) {
      for (let i = 0; i < slice.t.length; i++) {
        if (slice.mean[i] === null || slice.t[i] < this.view.a) continue;
        if (slice.low[i] < low) low = slice.low[i];
        if (slice.high[i] > high) high = slice.high[i];
      }
    }
    if (low > high) return [0, 1];
    if (this.about.id === "utilisation") return [0, Math.max(100, high)];
    const zero = low >= 0 && this.about.id !== "temperature" && this.about.id !== "logged";
    const bottom = zero ? 0 : low, room = (high - bottom) * 0.08 || Math.abs(high) * 0.05 || 1;
    return [zero ? 0 : bottom - room, high + room];
  }

  draw() {
    if (this.plot) this.plot.destroy();
    this.plot = new uPlot(this.options(), this.data(), this.box);
    this.plot.over.addEventListener("dblclick", () => this.view.reset());
    if (this.after) this.after();
  }

  refresh() {
    if (!this.plot) return;
    this.plot.setData(this.data(), true);
    if (this.after) this.after();
  }

  resize() {
    if (this.plot && this.plot.width !== this.width()) {
      this.plot.setSize({ width: this.width(), height: this.height() });
      this.refresh();
    }
  }

  selected(u) {
    const { left, width } = u.select;
    if (width > 3) {
      const a = u.posToVal(left, "x"), b = u.posToVal(left + width, "x");
      u.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
      this.view.set(a, b);
    }
  }

  // The values of the held stretch, or of the nearest point, under the pointer.
  at(x) {
    return this.slices.map((slice, k) => {
      const held = this.lines[this.visible()[k]].held;
      let i = everywatt.place(slice.t, x);
      if (i >= slice.t.length || held && i === 0) return null;
      if (!held && i > 0 && x - slice.t[i - 1] < slice.t[i] - x) i--;
      return slice.mean[i] === null ? null : { t: slice.t[i], mean: slice.mean[i], low: slice.low[i], high: slice.high[i] };
    });
  }

  cursor(u) {
    const left = u.cursor.left, x = left === null || left < 0 ? null : u.posToVal(left, "x");
    this.label(u, left, x);
    if (this.moved) this.moved(x);
  }

  // The time beside the crosshair, which runs through all charts.
  label(u, left, x) {
    if (!this.timeLabel || !this.timeLabel.isConnected) {
      this.timeLabel = everywatt.element("span.cursor-time", { "aria-hidden": "true" });
      u.over.append(this.timeLabel);
    }
    this.timeLabel.hidden = x === null;
    if (x === null) return;
    this.timeLabel.textContent = this.time(x, this.view.b - this.view.a);
    const right = left > u.over.clientWidth / 2;
    this.timeLabel.style.left = right ? "" : left + 6 + "px";
    this.timeLabel.style.right = right ? u.over.clientWidth - left + 6 + "px" : "";
  }

  // Spans without any inside them lie behind the curve, unless they have more names than there are colours, or many are
  // too thin: grey would come of it, and of the rest it would look as if nothing ran between them.
  drawBands(u, theme) {
    if (!this.bands) return;
    const { ctx, bbox } = u, deepest = this.deepest();
    const drawn = this.bands.bands.filter(([, start, end, depth]) => depth === deepest && end >= this.view.a && start <= this.view.b)
      .map(([name, start, end]) => [name, u.valToPos(start, "x", true), u.valToPos(end, "x", true)]);
    const wide = drawn.filter(([, x, x2]) => x2 - x >= 3);
    if (wide.length < 0.9 * drawn.length || new Set(wide.map(([name]) => name)).size > theme.palette.length) return;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    for (const [name, x, x2] of wide) {
      ctx.fillStyle = everywatt.faint(theme.palette[(name + 3) % theme.palette.length], 0.09);
      ctx.fillRect(x, bbox.top, x2 - x, bbox.height);
    }
    ctx.restore();
  }

  // From lowest to highest tick behind each mean: a shade, and both its edges, which show a spike however thin it is.
  drawRanges(u, theme) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1, many = this.slices.length > 4;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.lineWidth = ratio;
    this.slices.forEach((slice, k) => {
      const i = this.visible()[k], colour = this.colour(i, theme);
      const place = (t) => Math.round(u.valToPos(t, "x", true)), x = slice.t.map(place);
      const edges = { low: new Path2D(), high: new Path2D() }, shade = new Path2D();
      let any = false, joined = false, last = 0; // an edge goes on only where there was one just before
      for (let j = 1; j < x.length; j++) {
        if (slice.mean[j] === null || slice.low[j] === slice.high[j]) {
          if (joined) edges.high.lineTo(x[j - 1], last);
          joined = false;
          continue;
        }
        const left = x[j - 1], top = u.valToPos(slice.high[j], "y", true), bottom = u.valToPos(slice.low[j], "y", true);
        shade.rect(left, top, Math.max(x[j] - left, 1), bottom - top);
        for (const [edge, y] of [[edges.high, top], [edges.low, bottom]]) {
          if (!joined) edge.moveTo(left, bottom);
          edge.lineTo(left, y);
          edge.lineTo(x[j], y);
        }
        any = joined = true;
        last = bottom;
      }
      if (!any) return;
      ctx.fillStyle = everywatt.faint(colour, Math.max(0.04, Math.min(0.22, 0.4 / this.slices.length)));
      ctx.fill(shade);
      ctx.strokeStyle = everywatt.faint(colour, many ? 0.45 : 0.65);
      ctx.stroke(edges.high);
      ctx.stroke(edges.low);
    });
    ctx.restore();
  }

  // Every span on a lane above, with its name where there is room.
  drawLanes(u, theme) {
    const lanes = this.lanes();
    if (!lanes) return;
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1, tall = 19 * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, 0, bbox.width, bbox.top);
    ctx.clip();
    ctx.font = theme.small.replace("11px", 11 * ratio + "px");
    ctx.textBaseline = "middle";
    ctx.textAlign = "left";
    const drawn = new Map(), labelled = new Map();
    for (const [name, start, end, depth] of this.bands.bands) {
      if (depth >= lanes || end < this.view.a || start > this.view.b) continue;
      // One of those that share a pixel is enough.
      const last = Math.round(u.valToPos(end, "x", true));
      if (drawn.get(depth) >= last) continue;
      drawn.set(depth, last);
      const x = Math.max(u.valToPos(start, "x", true), bbox.left);
      const wide = Math.max(ratio, Math.min(u.valToPos(end, "x", true), bbox.left + bbox.width) - x - ratio);
      const y = bbox.top - (lanes - depth) * tall - 3 * ratio, colour = theme.palette[(name + 3) % theme.palette.length];
      ctx.fillStyle = everywatt.faint(colour, theme.dark ? 0.3 : 0.18);
      ctx.fillRect(x, y, wide, tall - 3 * ratio);
      ctx.fillStyle = colour;
      ctx.fillRect(x, y, Math.min(2 * ratio, wide), tall - 3 * ratio);
      const room = wide - 10 * ratio;
      if (room > 14 * ratio && !(labelled.get(depth) > x)) { // concurrent spans lie over each other: one name is readable, two are not
        const text = everywatt.fitted(ctx, this.bands.names[name], room);
        ctx.fillStyle = theme.strong;
        ctx.fillText(text, x + 6 * ratio, y + (tall - 3 * ratio) / 2);
        labelled.set(depth, x + 10 * ratio + ctx.measureText(text).width);
      }
    }
    ctx.restore();
  }
};

// Packed spans as [place of the name, start, end, depth], in seconds.
everywatt.bandsOf = async function (packed) {
  if (!packed.data) return [];
  const { name, start, length, depth } = await everywatt.unpack(packed.data);
  return Array.from(name, (place, i) => [place, start[i] / 1e6, (start[i] + length[i]) / 1e6, depth[i]]);
};

// The text, cut so that it fits.
everywatt.fitted = function (ctx, text, room) {
  if (ctx.measureText(text).width <= room) return text;
  let end = text.length;
  while (end > 0 && ctx.measureText(text.slice(0, end) + "…").width > room) end--;
  return end ? text.slice(0, end) + "…" : "";
};
