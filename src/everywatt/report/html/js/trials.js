// The page over a comparison or a sweep: what follows from it first, then the figures, then every trial.
"use strict";

everywatt.TrialsPage = class extends everywatt.Page {
  async show() {
    const { element } = everywatt, report = this.report;
    this.coloured = [];
    this.later = [];
    this.body = element("div.run", {}, this.parts());
    this.root.replaceChildren(this.top(), element("main", { id: "main" }, this.body, element("footer", {}, this.footer())));
    for (const draw of this.later) draw();
    this.view = null;
    document.title = report.title + " · everywatt";
    document.documentElement.dataset.ready = "true";
  }

  parts() { return [this.verdicts(), this.table(), this.settings(), this.ratios(), this.order(), this.log(), this.provenance()]; }

  title() { return this.report.title; }

  about() { return this.report.kind; }

  // A part that has colours of the theme: rebuilt when that changes.
  themed(make) {
    const box = everywatt.element("div", {}, make());
    this.coloured.push(() => box.replaceChildren(make()));
    return box;
  }

  colour(place) {
    const { palette } = everywatt.theme();
    return palette[place % palette.length];
  }

  verdicts() {
    const { element } = everywatt, { verdicts, failures, remarks } = this.report;
    const [first, ...rest] = verdicts;
    return element("section.card.summary", { id: "verdict", "aria-labelledby": "verdict-title" },
      element("h2", { id: "verdict-title" }, "Verdict"),
      element("p.verdict", {}, first),
      rest.length ? element("ul.verdicts", {}, rest.map((line) => element("li", {}, line))) : null,
      failures.length ? element("div.warnings", { role: "note", id: "failures" }, element("h3", {}, "Failures"), element("ul", {}, failures.map((line) => element("li", {}, line)))) : null,
      remarks.length ? element("ul.notes", {}, remarks.map((line) => element("li", {}, line))) : null);
  }

  table() {
    const { bars, section, table } = everywatt, { candidates, headers, rows, numbers } = this.report;
    const known = candidates.filter((one) => one.energy !== null);
    const make = () => bars("Mean energy per trial", known.map((one) => ({
      name: one.label, about: one.command, value: one.energy.value, low: one.energy.low, high: one.energy.high, shown: one.energy.shown, colour: this.colour(one.place),
    })));
    return section("figures", "Figures", "Means over trials. Whiskers and ± of energy are 95 % intervals; ± of time is the standard deviation.",
      known.length ? this.themed(make) : null, table("Figures", headers, rows, numbers));
  }

  // Energy against time, where settings were swept.
  settings() {
    const { element, section } = everywatt, { candidates, kind } = this.report;
    const known = candidates.filter((one) => one.energy !== null);
    if (kind !== "sweep" || !known.length) return null;
    const box = element("div.plot");
    const dots = known.map((one) => ({ x: one.seconds, y: one.energy.value, low: one.energy.low, high: one.energy.high, colour: one.chosen ? 0 : 7, label: one.label }));
    this.plot({ title: "Energy against time", height: 320, xs: (x) => everywatt.number(x, "s"), ys: (y) => everywatt.number(y, "J") }, dots, box);
    return section("settings", "Energy against time", "Coloured: no other setting is both cheaper and faster. The figures are in the table above.",
      element("div.chart-and-table", { "data-chart": "settings" }, element("figure.chart", { role: "img", "aria-label": "Energy against time of each setting" }, box)));
  }

  ratios() {
    const { section, ratios, table } = everywatt, found = this.report.ratios;
    if (!found.length) return null;
    const make = () => ratios("Ratios to " + this.report.first, found.map((one) => ({ ...one, name: one.label, about: one.what, colour: this.colour(one.place) })));
    return section("ratios", "Ratios to " + this.report.first, "From paired trials. The line at 1 means no difference. The gain of a sensor cancels in ratios of energy, its offset does not; its offset cancels above idle.",
      this.themed(make),
      everywatt.element("details", {}, everywatt.element("summary", {}, "Table of ratios"),
        table("Ratios", ["", "Of", "Ratio", "95 % interval", "Pairs", "Verdict"], found.map((one) => [one.label, one.what, one.value.toFixed(4), one.low === null || one.high === null ? "too few trials" : one.low.toFixed(4) + " … " + one.high.toFixed(4), String(one.trials), one.verdict]), [2, 3, 4])));
  }

  // Trials in the order in which they ran: who came when, and what each took.
  order() {
    const { element, section } = everywatt, { trials, candidates } = this.report;
    const key = () => element("ul.key", {}, candidates.map((one) => element("li", {}, everywatt.swatch(this.colour(one.place)), one.label)));
    const strip = () => element("ol.order", { "aria-label": "Execution order" }, trials.map((trial) => {
      const node = element("li" + (trial.exit_code ? ".failed" : ""), { title: "trial " + trial.number + ": " + trial.label + (trial.exit_code ? ", ended with " + trial.exit_code : "") }, trial.label);
      node.style.borderColor = this.colour(trial.candidate);
      return node;
    }));
    const energy = trials.some((trial) => trial.joules !== null), box = element("div.plot");
    const dots = trials.map((trial) => ({ x: trial.number, y: energy ? trial.joules : trial.seconds, low: energy ? trial.low : null, high: energy ? trial.high : null, colour: trial.candidate, cross: trial.exit_code !== 0 }));
    const what = energy ? "Energy of each trial" : "Time of each trial", unit = energy ? "J" : "s";
    if (dots.length) this.plot({ title: what, whole: true, xs: (x) => String(x), ys: (y) => everywatt.number(y, unit) }, dots, box);
    return section("order", "Trials in execution order", what + ". Each runs once per block, and every other block is reversed, so a warming machine favours none of them. Whiskers: measurement uncertainty. A cross marks a trial whose command failed.",
      this.themed(key),
      element("div.chart-and-table", { "data-chart": "trials" }, element("figure.chart", { role: "img", "aria-label": what + " in execution order; the table below has the numbers" }, box)),
      this.themed(strip));
  }

  plot(about, dots, box) {
    const chart = new everywatt.Dots(about, dots, box);
    this.charts.push(chart);
    this.later.push(() => chart.draw());
  }

  log() {
    const { section, table, element } = everywatt, { trials } = this.report;
    return section("trials", "All trials", null, element("details", {}, element("summary", {}, "Table of " + trials.length + " trials"),
      table("Trials", ["Trial", "Block", "Of", "Energy", "Above idle", "Time", "Ended with", ""],
        trials.map((trial) => [String(trial.number), String(trial.block + 1), trial.label, trial.shown, trial.net_shown, everywatt.number(trial.seconds, "s"), String(trial.exit_code), trial.remark]), [0, 1, 3, 4, 5, 6])));
  }

  provenance() {
    const { section, element } = everywatt, { command, pairs } = this.report;
    return section("provenance", "Environment", null,
      command ? element("div.reproduce", {}, element("code", {}, command), everywatt.copyButton("Copy the command to reproduce", () => command)) : null,
      element("dl.pairs", {}, pairs.map(([label, text]) => element("div", {}, element("dt", {}, label), element("dd", {}, text)))));
  }
};
