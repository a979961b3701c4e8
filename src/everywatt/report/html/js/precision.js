// The page over a run of the precision lab: a comparison whose candidates are precisions of one model.
"use strict";

everywatt.PrecisionPage = class extends everywatt.TrialsPage {
  parts() { return [this.verdicts(), this.table(), this.worth(), this.ratios(), this.computed(), ...this.report.layers.map((one) => this.layers(one)), this.sensitivity(), this.order(), this.log(), this.environment()]; }

  about() { return "precision report"; }

  table() {
    const { bars, element, section, table } = everywatt, { candidates, tables } = this.report;
    const known = candidates.filter((one) => one.energy !== null);
    const make = () => bars("Energy per sample", known.map((one) => ({
      name: one.label, about: one.command, value: one.energy.value, low: one.energy.low, high: one.energy.high, shown: one.energy.shown, colour: this.colour(one.place),
    })));
    return section("figures", "Energy per sample", "Only the timed loops are charged. Whiskers and ± are 95 % intervals; a batch has several samples.",
      known.length ? this.themed(make) : null,
      ...tables.filter((one) => one.rows.length).flatMap((one) => [element("h3", {}, one.title), table(one.title, one.heads, one.rows, one.numbers)]));
  }

  // What the answers are worth against what a sample costs.
  worth() {
    const { section } = everywatt, { candidates, metric } = this.report;
    const known = candidates.filter((one) => one.energy !== null && one.score !== null);
    if (!known.length) return null;
    const right = metric === "accuracy", title = (right ? "Accuracy" : "Perplexity") + " against energy";
    const scale = right ? 100 : 1;
    const dots = () => known.map((one) => ({ x: one.energy.value, xLow: one.energy.low, xHigh: one.energy.high, y: scale * one.score.value, yLow: scale * one.score.low, yHigh: scale * one.score.high, colour: this.colour(one.chosen ? one.place : 7), label: one.label }));
    return section("worth", title, "Coloured: no other precision is both cheaper and " + (right ? "more accurate" : "lower in perplexity") + ". Whiskers are 95 % intervals. The figures are in the tables above.",
      this.plot("worth", title + " per sample, for each precision", { xLabel: "energy, J", yLabel: right ? "accuracy, %" : "perplexity" }, dots));
  }

  computed() {
    const { element, section } = everywatt, lines = this.report.computed;
    return lines.length ? section("computed", "Precision actually computed", "Determined from the weights and the operators that ran, not from the label.", element("ul.notes", {}, lines.map((line) => element("li", {}, line)))) : null;
  }

  layers(found) {
    const { element, section, swatch, table, whole } = everywatt;
    const make = () => {
      const parts = found.parts.map((part, i) => ({ ...part, colour: this.colour(i) }));
      return element("div", {}, whole(parts), element("ul.key", {}, parts.map((part) => element("li", {}, swatch(part.colour), part.name, element("span.about", {}, part.shown + " · " + everywatt.percent(part.share))))));
    };
    return section("layers-" + found.precision, "By layer: " + found.precision, "Times come from a separate pass with hooks, joules from the loop without them; time outside layers is a row of its own, and all rows add up to a batch.",
      this.themed(make),
      element("details", {}, element("summary", {}, "Table of " + (found.rows.length - 1) + " layers"), table("Layers of " + found.precision, found.heads, found.rows, [2, 3]),
        found.more ? element("p.about", {}, "and " + found.more + " more in the JSON") : null));
  }

  sensitivity() {
    const { section, table } = everywatt, found = this.report.sensitivity;
    return found ? section("sensitivity", found.title, "Each layer quantised alone: what it saves and how it changes the outputs. The resulting plan was then measured.", table(found.title, found.heads, found.rows, [1, 2, 3, 4])) : null;
  }
};
