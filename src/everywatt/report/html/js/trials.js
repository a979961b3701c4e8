// The page over a comparison or a sweep: what follows from it first, then the figures, then every trial.
"use strict";

// A ratio on a line, with its interval and where 1 is: [{name, about, value, low, high, shown, colour}].
everywatt.ratios = function (label, rows) {
  const { element } = everywatt;
  // An interval that reaches far beyond all values hardly says anything, and would leave no room for the others.
  const far = 3 * Math.max(1, ...rows.map((row) => row.value)), open = (row) => row.high === null || row.high > far;
  const ends = rows.flatMap((row) => [row.low ?? row.value, Math.min(row.high ?? row.value, far)]).concat(1);
  const spread = Math.max(...ends) - Math.min(...ends) || 0.02;
  const from = Math.min(...ends) - 0.08 * spread, wide = 1.16 * spread, place = (x) => 100 * (x - from) / wide + "%";
  return element("ul.bars.ratios", { "aria-label": label }, rows.map((row) => {
    const one = element("span.one"), point = element("span.point"), whisker = element("span.whisker");
    one.style.left = place(1);
    point.style.left = place(row.value);
    point.style.background = row.colour;
    if (row.low !== null) { // without an end it reaches the end of the track
      whisker.style.left = place(row.low);
      if (open(row)) whisker.style.right = "0";
      else whisker.style.width = 100 * (row.high - row.low) / wide + "%";
    } else whisker.hidden = true;
    return element("li", {},
      element("span.name", {}, element("span.what", { title: row.name }, row.name), element("span.about", {}, row.about)),
      element("span.track", { "aria-hidden": "true" }, one, whisker, point),
      element("span.value", {}, row.shown));
  }));
};

everywatt.TrialsPage = class extends everywatt.Page {
  async show() {
    const { element } = everywatt, report = this.report;
    this.body = element("div.run", {}, this.parts());
    this.root.replaceChildren(this.top(), element("main", { id: "main" }, this.body, element("footer", {}, this.footer())));
    this.view = null;
    document.title = report.title + " · everywatt";
    document.documentElement.dataset.ready = "true";
  }

  parts() { return [this.verdicts(), this.table(), this.settings(), this.ratios(), this.order(), this.log(), this.environment()]; }

  title() { return this.report.title; }

  about() { return this.report.kind; }

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
    const { bars, element, section, table } = everywatt, { candidates, headers, rows, numbers } = this.report;
    const of = (title, key) => {
      const known = candidates.filter((one) => one[key]);
      return known.length ? this.themed(() => bars(title, known.map((one) => ({ ...one[key], name: one.label, about: one.command, colour: this.colour(one.place) })))) : null;
    };
    const cpu = of("Mean CPU time per trial", "cpu_time"), energy = of("Mean energy per trial", "energy");
    const heads = cpu ? ["CPU time", "Energy, modelled from it"].map((words) => element("h3", {}, words)) : [null, null];
    return section("figures", "Figures", "Means over trials. Whiskers and ± of energy are 95 % intervals; ± of time is the standard deviation.",
      heads[0], cpu, heads[1], energy, table("Figures", headers, rows, numbers));
  }

  // Energy against time, where settings were swept.
  settings() {
    const { section } = everywatt, { candidates, kind } = this.report;
    const known = candidates.filter((one) => one.energy !== null);
    if (kind !== "sweep" || !known.length) return null;
    const plot = this.plot("settings", "Energy against time of each setting", { xLabel: "time, s", yLabel: "energy, J" },
      () => known.map((one) => ({ x: one.seconds, y: one.energy.value, yLow: one.energy.low, yHigh: one.energy.high, colour: this.colour(one.chosen ? one.place : 7), label: one.label })));
    return section("settings", "Energy against time", "Coloured: no other setting is both cheaper and faster. The figures are in the table above.", plot);
  }

  ratios() {
    const { section, ratios, table } = everywatt, found = this.report.ratios;
    if (!found.length) return null;
    const make = () => ratios("Ratios to " + this.report.first, found.map((one) => ({ ...one, name: one.label, about: one.what, colour: this.colour(one.place) })));
    return section("ratios", "Ratios to " + this.report.first, "From paired trials. The line at 1 means no difference. The gain of a sensor cancels in ratios of energy, its offset does not; its offset cancels above idle.",
      this.themed(make),
      everywatt.element("details", {}, everywatt.element("summary", {}, "Table of ratios"),
        table("Ratios", ["", "Of", "Ratio (95 % interval)", "Pairs", "Verdict"], found.map((one) => [one.label, one.what, one.shown, String(one.trials), one.verdict]), [2, 3])));
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
    const energy = trials.some((trial) => trial.joules !== null), what = energy ? "Energy of each trial" : "Time of each trial";
    const known = trials.filter((trial) => energy ? trial.joules !== null : true);
    const dot = (trial) => ({ x: trial.number, y: energy ? trial.joules : trial.seconds, yLow: energy ? trial.low : null, yHigh: energy ? trial.high : null, name: trial.label, colour: this.colour(trial.candidate), cross: trial.exit_code !== 0 });
    return section("order", "Trials in execution order", what + ". Each runs once per block, and every other block is reversed, so a warming machine favours none of them. Whiskers: measurement uncertainty. A cross marks a trial whose command failed.",
      this.themed(key), this.plot("trials", what + " in execution order", { xLabel: "trial", yLabel: energy ? "energy, J" : "time, s", whole: true }, () => known.map(dot)), this.themed(strip));
  }

  // A plot that has no table: its figures are in one of the page.
  plot(id, label, about, points) {
    if (!points().length) return null;
    return everywatt.element("div", { "data-chart": id }, this.themed(() => everywatt.scatter(label, points(), { ...about, tight: true, table: false })));
  }

  log() {
    const { section, table, element } = everywatt, { trials } = this.report;
    return section("trials", "All trials", null, element("details", {}, element("summary", {}, "Table of " + trials.length + " trials"),
      table("Trials", ["Trial", "Block", "Of", "Energy", "Above idle", "Time", "Ended with", ""],
        trials.map((trial) => [String(trial.number), String(trial.block + 1), trial.label, trial.shown, trial.net_shown, everywatt.number(trial.seconds, "s"), String(trial.exit_code), trial.remark]), [0, 1, 3, 4, 5, 6])));
  }

  environment() { return this.provenance({ reproduce: this.report.reproduce, provenance: this.report.pairs }); }
};
