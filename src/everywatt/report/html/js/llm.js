// The sections of runs of language models.
"use strict";

// The section of one run.
everywatt.llmSection = function (page, run) {
  const { element, section, table } = everywatt, llm = run.llm;
  if (!llm) return null;
  if (llm.refused) return section("llm", "What the answers cost", null, element("p.about", {}, "No figures: " + llm.refused + "."));
  const scatter = (label, of, xLabel) => llm.tokens.length > 2 ? everywatt.scatter(label, llm.tokens.map(of), { xLabel, yLabel: "J", size: 3 }) : null;
  const above = "; the last bin includes everything above";
  const make = () => [
    llm.per_token ? everywatt.histogram("Energy per output token, by query", llm.per_token, "J per output token" + above) : null,
    llm.energy ? everywatt.histogram("Energy of a query", llm.energy, "J" + above) : null,
    llm.ttft ? everywatt.histogram("Time to first token, by query", llm.ttft, "s" + above) : null,
    llm.e2e ? everywatt.histogram("Time of a whole answer, by query", llm.e2e, "s" + above) : null,
    scatter("Energy against latency, by query", ([, y, x]) => ({ x, y }), "seconds of the whole answer"),
    scatter("Energy against output tokens, by query", ([x, y]) => ({ x, y }), "output tokens"),
    llm.curve.length > 1 ? everywatt.scatter("Energy against throughput, by load", llm.curve.map((p) => ({ ...p, yLow: p.low, yHigh: p.high })), { xLabel: "output tokens per second", yLabel: "J per output token", joined: true, named: true }) : null,
  ].filter(Boolean);
  const states = (one) => Object.entries(one.statuses).map(([name, count]) => count + " " + name).join(", ");
  const numbers = (heads) => heads.map((_, i) => i).slice(1);
  const levels = llm.levels.map((one) => element("details", {}, element("summary", {}, "All figures of " + one.level + ": " + states(one)),
    table(one.level, ["Figure", "Value", "95 %", "Formula"], one.rows, [1, 2]),
    element("p.about", {}, "Boundary: " + one.about + "."),
    one.notes.length ? element("ul.notes", {}, one.notes.map((note) => element("li", {}, note))) : null));
  const failures = llm.failures.length ? [element("h3", {}, "Why queries failed"), table("Why queries failed", ["Load", "Queries", "Status", "Reason"], llm.failures, [1])] : [];
  const subjects = llm.subjects ? [element("h3", {}, "Accuracy by subject"), table("Accuracy by subject", llm.subjects.heads, llm.subjects.rows, numbers(llm.subjects.heads))] : [];
  const knee = llm.knee ? element("p.about", {}, "Knee of the curve: " + llm.knee.level + "; more load hardly saves energy beyond it.") : null;
  return section("llm", "What the answers cost", llm.model + " on " + llm.dataset + ", queried by " + llm.client, element("p.lead", {}, llm.answer),
    table("Loads", llm.loads.heads, llm.loads.rows, numbers(llm.loads.heads)), element("p.about", {}, "The joules cover " + llm.boundary + "."), knee, ...failures, ...subjects, page.themed(() => element("div.small-plots", {}, make())), ...levels,
    element("h3", {}, "Most expensive queries"),
    table("Most expensive queries", llm.worst.heads, llm.worst.rows, llm.worst.numbers));
};

// Models beside each other, over the runs of a report.
everywatt.modelsSection = function (page, models) {
  const { element, section, table } = everywatt;
  if (!models) return null;
  if (models.refused) return section("models", "Models", null, element("p.warnings", { role: "note" }, "Cannot be ranked together: " + models.refused));
  const known = models.rows.filter((row) => row.accuracy.value !== null && row.joules.value !== null);
  const runs = page.report.runs.map((run) => run.name); // a model has the colour of its run in the comparison above
  const make = () => known.length ? [everywatt.scatter("Accuracy against joules per request", known.map((row) => ({ name: row.name, colour: page.colour(runs.indexOf(row.run)), x: row.joules.value, xLow: row.joules.low, xHigh: row.joules.high, y: row.accuracy.value, yLow: row.accuracy.low, yHigh: row.accuracy.high })), { xLabel: "J per request", yLabel: "accuracy", named: true })] : [];
  return section("models", "Models", models.dataset + " · joules: scope " + models.scope + ", boundary " + models.boundary, page.themed(() => element("div.small-plots", {}, make()), true),
    table("Models, best first", ["Model and load", "Accuracy", "Correct/J", "J/token", "J per request", "Provenance", "Run"], models.rows.map((row) => [row.name, row.accuracy_shown, row.per_joule, row.per_token, row.joules_shown, row.pedigree, row.run]), [1, 2, 3, 4]));
};
