// Dots with whiskers: [{x, y, low, high, colour (place in the palette), label, cross}], drawn over uPlot's axes.
"use strict";

everywatt.Dots = class {
  // about: {title, height, xs: text of an x, ys: text of a y, whole: true where x counts}
  constructor(about, dots, box) {
    Object.assign(this, { about, box, dots: dots.filter((dot) => dot.y !== null) });
    new ResizeObserver(() => { if (this.plot && this.plot.width !== this.width()) this.draw(); }).observe(box);
  }

  width() { return Math.max(260, Math.floor(this.box.clientWidth)); }

  draw() {
    if (this.plot) this.plot.destroy();
    const theme = everywatt.theme(), sorted = [...this.dots].sort((a, b) => a.x - b.x);
    const axis = { stroke: theme.text, grid: { stroke: theme.grid, width: 1 }, ticks: { stroke: theme.grid, width: 1 }, font: theme.font };
    this.plot = new uPlot({
      width: this.width(), height: this.about.height || 260, padding: [16, 24, 0, 0], legend: { show: false }, cursor: { show: false },
      series: [{}, { paths: () => null, points: { show: false } }],
      scales: { x: { time: false, range: () => this.xRange() }, y: { range: () => this.yRange() } },
      axes: [
        { ...axis, size: 34, space: 60, incrs: this.about.whole ? [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] : undefined, values: (u, ticks) => ticks.map(this.about.xs) },
        { ...axis, size: 70, values: (u, ticks) => ticks.map(this.about.ys) },
      ],
      hooks: { draw: [(u) => this.paint(u, theme)] },
    }, [sorted.map((dot) => dot.x), sorted.map((dot) => dot.y)], this.box);
  }

  xRange() {
    const all = this.dots.map((dot) => dot.x), low = Math.min(...all), high = Math.max(...all);
    if (this.about.whole) return [low - 1, high + 1];
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  yRange() {
    const low = Math.min(...this.dots.map((dot) => dot.low ?? dot.y)), high = Math.max(...this.dots.map((dot) => dot.high ?? dot.y));
    const room = (high - low) * 0.1 || Math.abs(high) * 0.1 || 1;
    return [low - room, high + room];
  }

  paint(u, theme) {
    const { ctx, bbox } = u, ratio = devicePixelRatio || 1, size = (this.dots.length > 200 ? 2.5 : 4.5) * ratio;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    ctx.font = theme.small.replace("11px", 11 * ratio + "px");
    ctx.textBaseline = "middle";
    for (const dot of this.dots) {
      const x = u.valToPos(dot.x, "x", true), y = u.valToPos(dot.y, "y", true);
      ctx.strokeStyle = ctx.fillStyle = theme.palette[dot.colour % theme.palette.length];
      ctx.lineWidth = 1.5 * ratio;
      ctx.beginPath();
      if (dot.low !== null && dot.low !== undefined) {
        ctx.moveTo(x, u.valToPos(dot.low, "y", true));
        ctx.lineTo(x, u.valToPos(dot.high, "y", true));
      }
      if (dot.cross) {
        ctx.moveTo(x - size, y - size); ctx.lineTo(x + size, y + size);
        ctx.moveTo(x - size, y + size); ctx.lineTo(x + size, y - size);
      }
      ctx.stroke();
      if (!dot.cross) { ctx.beginPath(); ctx.arc(x, y, size, 0, 2 * Math.PI); ctx.fill(); }
      if (dot.label) this.name(ctx, bbox, dot.label, x, y, size + 4 * ratio, theme);
    }
    ctx.restore();
  }

  // To the right of the dot where there is room, else to its left.
  name(ctx, bbox, label, x, y, gap, theme) {
    const right = x + gap + ctx.measureText(label).width < bbox.left + bbox.width;
    ctx.textAlign = right ? "left" : "right";
    ctx.fillStyle = theme.strong;
    ctx.fillText(label, right ? x + gap : x - gap, y);
  }
};

// A ratio on a line, with its interval and where 1 is: [{name, about, value, low, high, shown, colour}].
everywatt.ratios = function (label, rows) {
  const { element } = everywatt;
  const ends = rows.flatMap((row) => [row.low ?? row.value, row.high ?? row.value]).concat(1);
  const spread = Math.max(...ends) - Math.min(...ends) || 0.02;
  const from = Math.min(...ends) - 0.08 * spread, wide = 1.16 * spread, place = (x) => 100 * (x - from) / wide + "%";
  return element("ul.bars.ratios", { "aria-label": label }, rows.map((row) => {
    const one = element("span.one"), point = element("span.point"), whisker = element("span.whisker");
    one.style.left = place(1);
    point.style.left = place(row.value);
    point.style.background = row.colour;
    if (row.low !== null && row.high !== null) {
      whisker.style.left = place(row.low);
      whisker.style.width = 100 * (row.high - row.low) / wide + "%";
    } else whisker.hidden = true;
    return element("li", {},
      element("span.name", {}, element("span.what", { title: row.name }, row.name), element("span.about", {}, row.about)),
      element("span.track", { "aria-hidden": "true" }, one, whisker, point),
      element("span.value", {}, row.shown));
  }));
};
