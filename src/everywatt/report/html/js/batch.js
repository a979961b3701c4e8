// The section of a batch: who did how much, what went wrong, every item, when GPUs were busy and what they drew for it.
"use strict";

// Utilisation in equal steps of time: one row a GPU, the fuller the busier; a step without a reading stays empty.
everywatt.heatMap = function (heat) {
  const { element, svg, seconds } = everywatt, span = heat.to_s - heat.from_s;
  const row = (one) => {
    const cells = one.cells.map((value, i) => value === null ? null : svg("rect",
      { x: i, y: 0, width: 1.02, height: 1, class: "heat", "fill-opacity": (0.06 + 0.94 * value / 100).toFixed(3) },
      svg("title", {}, seconds(heat.from_s + i * span / one.cells.length, span) + ": " + everywatt.number(value, "%"))));
    const known = one.cells.filter((value) => value !== null);
    const mean = known.reduce((sum, value) => sum + value, 0) / known.length;
    return element("div.heat-row", {}, element("span.name", {}, one.device),
      svg("svg", { viewBox: "0 0 " + one.cells.length + " 1", preserveAspectRatio: "none", role: "img", "aria-label": one.device + ": mean utilisation " + everywatt.percent(mean / 100) }, cells),
      element("span.value", {}, everywatt.percent(mean / 100)));
  };
  return element("div.heat-map", { role: "group", "aria-label": "Utilisation of each GPU over time" }, heat.rows.map(row),
    element("p.about", {}, seconds(heat.from_s, span) + " to " + seconds(heat.to_s, span) + "; mean utilisation in each of " + heat.rows[0].cells.length + " steps"),
    element("details", {}, element("summary", {}, "Table of utilisation over time"), everywatt.heatTable(heat)));
};

// The same in at most twelve steps.
everywatt.heatTable = function (heat) {
  const steps = Math.min(12, ...heat.rows.map((one) => one.cells.length));
  const mean = (cells, i) => {
    const known = cells.slice(Math.floor(i * cells.length / steps), Math.floor((i + 1) * cells.length / steps)).filter((value) => value !== null);
    return known.length ? everywatt.number(known.reduce((sum, value) => sum + value, 0) / known.length) : "–";
  };
  const until = Array.from({ length: steps }, (_, i) => everywatt.seconds(heat.from_s + (i + 1) * (heat.to_s - heat.from_s) / steps, heat.to_s - heat.from_s));
  const heads = ["until", ...heat.rows.map((one) => one.device + " (%)")];
  return everywatt.table("Mean utilisation over time", heads, until.map((at, i) => [at, ...heat.rows.map((one) => mean(one.cells, i))]), heads.map((_, i) => i));
};

everywatt.useAgainstPower = function (points) {
  return everywatt.scatter("Utilisation against power, by item", points.map((p) => ({ x: p.use, y: p.watts, name: p.item + " on " + p.device })), { xLabel: "mean utilisation, %", yLabel: "mean power, W", size: 3 });
};

everywatt.batchSection = function (batch, page) {
  const { element, table } = everywatt;
  if (!batch) return null;
  const numbers = (heads) => heads.map((_, i) => i).slice(1);
  const { warnings } = page.report.runs[page.run], notes = batch.notes.filter((note) => !warnings.includes(note));
  const cockpit = new everywatt.Cockpit(batch, page);
  const causes = batch.causes.map(([cause, ...rest]) => [element("button.link", { type: "button", title: "Search for these items", onclick: () => cockpit.search(cause) }, cause), ...rest]);
  return everywatt.section("batch", "Batch", batch.headline,
    table("By device", batch.heads, batch.devices, numbers(batch.heads)),
    element("p.about", {}, "Energy of an item: what all its attempts used of the card and the item's share of the processors, idle power included; of a device: that of the items that ran there. Time of an item: that of its last attempt."),
    ...(causes.length ? [element("h3", {}, "Not finished, by cause"), table("Not finished, by cause", ["Cause", "Items", "Which"], causes, [1])] : []),
    cockpit.show(),
    ...(batch.stragglers.length ? [element("h3", {}, "Stragglers"), table("Stragglers", batch.item_heads, batch.stragglers, [2, 4, 5])] : []),
    ...(batch.heat ? [element("h3", {}, "Utilisation over time"), everywatt.heatMap(batch.heat)] : []),
    batch.points.length > 1 ? element("div.scatter", {}, page.themed(() => everywatt.useAgainstPower(batch.points))) : null,
    notes.length ? element("ul.notes", {}, notes.map((note) => element("li", {}, note))) : null);
};

everywatt.scalingSection = function (page, scaling) {
  if (!scaling) return null;
  const bars = (title, key) => {
    const rows = scaling.points.filter((p) => p[key] !== null)
      .map((p) => ({ name: p.name, about: p.gpus + (p.gpus === 1 ? " GPU" : " GPUs"), ...p[key], colour: page.colour(0) }));
    return rows.length ? [everywatt.element("h3", {}, title), everywatt.bars(title, rows)] : [];
  };
  const make = () => [...bars("Items/s", "items_per_s"), ...bars("J/item", "joules_per_item")];
  return everywatt.section("scaling", "Scaling", "Batches by number of GPUs.",
    everywatt.table("Scaling", scaling.heads, scaling.rows, scaling.heads.map((_, i) => i).slice(1)), page.themed(make, true));
};
