// The page over one document: a run at a time, and a comparison where there are several.
"use strict";

everywatt.Page = class {
  constructor(report, root) {
    this.report = report;
    this.root = root;
    this.run = 0;
    this.charts = [];
    this.coloured = [];
  }

  async show() {
    const { element } = everywatt, report = this.report;
    const several = report.runs.length > 1;
    this.body = element("div.run");
    this.root.replaceChildren(
      this.top(),
      element("main", { id: "main" },
        several ? this.comparison() : null,
        several ? everywatt.scalingSection(this, report.scaling) : null,
        several ? everywatt.modelsSection(this, this.report.models) : null,
        several ? this.tabs() : null,
        this.body,
        element("footer", {}, this.footer())));
    await this.showRun(0);
    if (several) await this.overlay();
    document.documentElement.dataset.ready = "true";
  }

  footer() {
    const { everywatt: version, made } = this.report;
    return "Written by everywatt " + version + " on " + made.replace("T", " ").replace("+00:00", " UTC") + ". This file makes no network requests.";
  }

  about() { return "energy report"; }

  title() {
    const { runs } = this.report;
    return runs.length > 1 ? runs.length + " runs compared" : runs[0].name;
  }

  top() {
    const { element } = everywatt, title = this.title();
    return element("header.top", {},
      element("div.brand", {}, element("span.mark", { "aria-hidden": "true" }), "everywatt", element("span.about", {}, this.about())),
      element("h1", {}, title),
      element("div.tools", {}, everywatt.themeButton(() => this.redraw()), element("button.plain", { type: "button", onclick: () => print() }, "Print")));
  }

  // Colours come from the style, so everything is redrawn when that changes.
  redraw() {
    for (const chart of this.charts) { chart.draw(); if (chart.legend) chart.legend(); }
    for (const recolour of this.coloured) recolour();
  }

  // A part with colours of the theme: made again when that changes. One that is kept belongs to no single run.
  themed(make, kept = false) {
    const box = everywatt.element("div", {}, make()), recolour = () => box.replaceChildren(...[make()].flat());
    recolour.kept = kept;
    this.coloured.push(recolour);
    return box;
  }

  tabs() {
    const { element } = everywatt;
    this.buttons = this.report.runs.map((run, i) => element("button", { type: "button", "aria-pressed": i === 0 ? "true" : "false", onclick: () => this.showRun(i) }, run.name));
    return element("nav.tabs", { "aria-label": "Runs" }, this.buttons);
  }

  async showRun(index) {
    const run = this.report.runs[index];
    if (run.batch && run.batch.items.deflate) run.batch.items = await everywatt.unpackJson(run.batch.items);
    this.run = index;
    if (this.buttons) this.buttons.forEach((button, i) => button.setAttribute("aria-pressed", String(i === index)));
    this.charts = this.charts.filter((chart) => chart.kept);
    this.coloured = this.coloured.filter((recolour) => recolour.kept);
    this.view = new everywatt.Window(...run.extent_s, run.run_s);
    this.colourOf = this.colours(run);
    const summary = this.summary(run);
    this.coloured.push(() => this.body.querySelector("#summary").replaceWith(this.summary(run)));
    const parts = [everywatt.llmSection(this, run), summary, everywatt.batchSection(run.batch, this), this.chartSection(run), this.wall(run), this.owners(run), this.phases(run), everywatt.flameSection(this, run.flames), this.quality(run), this.carbon(run), this.provenance(run)];
    this.body.replaceChildren(...parts.filter((part) => part !== null));
    await this.fillCharts(run);
  }

  // The same device has the same colour in every chart of every run; so has a part of a board, such as `jetson.cpu0`.
  colours(run) {
    const linesOf = (one) => one.charts.flatMap((chart) => chart.lines), logged = linesOf(run).filter((line) => !line.device).map((line) => line.label);
    const part = ({ device, label }) => device && label.startsWith(device + ".") ? device + label.slice(device.length).split(" ")[0] : device;
    const places = everywatt.devicePlaces(this.report.runs.flatMap(linesOf).filter((line) => line.device).flatMap((line) => [line.device, part(line)]));
    this.placeOf = (device) => places.get(device);
    this.freePlace = 1 + Math.max(-1, ...places.values());
    return (line) => places.get(part(line)) ?? this.freePlace + Math.max(0, logged.indexOf(line.label));
  }

  // The colour at a place of the palette, as the theme has it now.
  colour(place) {
    const { palette } = everywatt.theme();
    return palette[place % palette.length];
  }

  summary(run) {
    const { element, whole, swatch } = everywatt, energy = run.energy;
    const refused = energy.joules === null;
    const big = refused
      ? element("div.big", {}, element("span.refused", {}, "no energy"), element("p", {}, energy.refused))
      : element("div.big", {},
        element("p.figure", {}, element("span.value", {}, energy.big.value), element("span.unit", {}, energy.big.unit), element("span.spread", {}, energy.big.spread)),
        element("p.about", {}, [energy.big.interval ? "95 % interval" : "", energy.sampling_only ? "sampling only" : ""].filter(Boolean).join(", ") + (energy.big.interval && !energy.big.spread.startsWith("(") ? ": " + energy.big.interval : "")));
    const chips = refused ? null : element("dl.chips", {},
      this.chip("Scope", energy.scope, "what the joules cover"),
      this.chip("Provenance", energy.pedigree, energy.pedigree.includes("modelled") ? "estimated, not measured" : "how they were obtained", energy.pedigree.includes("modelled")),
      this.chip("Coverage", energy.coverage_shown, "share of the time observed", energy.coverage < 0.99));
    const figures = element("dl.figures", {}, run.figures.map((figure) => element("div", {}, element("dt", {}, figure.label), element("dd", {}, everywatt.withSpread(figure.value), element("span.about", {}, figure.about)))));
    const carbon = run.carbon ? run.carbon.rows.filter((row) => row.name !== "energy") : [];
    for (const row of carbon) figures.append(element("div", {}, element("dt", {}, row.label), element("dd", {}, everywatt.withSpread(row.shown), element("span.about", {}, "apart from joules; see below"))));
    const parts = run.devices.filter((device) => device.in_total && device.share !== null)
      .map((device) => ({ name: device.name, share: device.share, shown: device.energy.shown, colour: this.colour(this.colourOf(device)), dashed: this.colourOf(device) >= everywatt.palettes.light.length }));
    const named = element("ul.key", {}, parts.map((part) => element("li", {}, swatch(part.colour, part.dashed), part.name, element("span.about", {}, part.shown + " · " + everywatt.percent(part.share)))));
    const warnings = run.warnings.length ? element("div.warnings", { role: "note" }, element("h3", {}, "Caveats"), element("ul", {}, run.warnings.map((text) => element("li", {}, text)))) : null;
    return element("section.card.summary", { id: "summary", "aria-labelledby": "summary-title" },
      element("h2", { id: "summary-title" }, this.report.runs.length > 1 ? "Energy of " + run.name : run.llm ? "Energy of the whole machine" : "Energy"),
      element("div.hero", {}, element("div", {}, big, chips), figures),
      parts.length > 1 ? element("div.parts", {}, whole(parts), named) : null,
      warnings);
  }

  chip(label, value, about, warn) {
    const { element } = everywatt;
    return element("div.chip" + (warn ? ".warn" : ""), { title: about }, element("dt", {}, label), element("dd", {}, value));
  }

  chartSection(run) {
    const { element } = everywatt;
    const button = (text, label, act) => element("button", { type: "button", "aria-label": label, title: label, onclick: act }, text);
    const longer = run.run_s[0] - run.extent_s[0] > 0.01 * run.duration_s || run.extent_s[1] - run.run_s[1] > 0.01 * run.duration_s;
    this.readout = element("p.readout", { "aria-live": "polite" });
    this.depth = element("p.depth");
    this.tools = element("div.toolbar", { role: "toolbar", "aria-label": "Window of time" },
      element("div.group", {},
        button("←", "Earlier", () => this.view.move(-0.2)), button("−", "Zoom out", () => this.view.zoom(2)),
        button("+", "Zoom in", () => this.view.zoom(0.5)), button("→", "Later", () => this.view.move(0.2)),
        button("Whole run", "Whole run", () => this.view.reset()),
        longer ? button("Recording", "Whole recording, with what was recorded before and after the run", () => this.view.set(...run.extent_s)) : null,
        button("Peak", "Go to the highest reading", () => this.toPeak())),
      this.readout);
    this.chartsBox = element("div.charts");
    const about = element("span.hint", {}, "Drag over a chart to zoom, double-click for the whole run. With a chart in focus: arrow keys move and zoom, + and − zoom, 0 shows the whole run.");
    return everywatt.section("charts", "Over time", about, this.tools, this.depth, this.chartsBox);
  }

  async fillCharts(run) {
    const { view } = this, made = [], bands = { names: run.bands.names, bands: await everywatt.bandsOf(run.bands) };
    for (const about of run.charts) {
      const lines = await Promise.all(about.lines.map((line) => everywatt.Line.of(line)));
      if (view !== this.view) return;
      const chart = this.chart(about, lines, view, this.colourOf, { bands: about.id === "power" ? bands : null, keys: " over time. Arrow keys move and zoom, 0 shows the whole run." });
      this.chartsBox.append(chart.frame);
      made.push(chart);
      chart.draw();
      chart.legend();
    }
    this.made = made;
    view.listeners.push(() => this.windowMoved(run));
    this.windowMoved(run);
    this.tools.hidden = !made.length;
  }

  // A chart with its legend and its table, in a frame that has the focus for keys.
  chart(about, lines, view, colours, { bands = null, keys, Kind = everywatt.Chart, name = about.id }) {
    const { element } = everywatt, box = element("div.plot"), legend = element("div.legend");
    const details = element("details", {}, element("summary", {}, "Table of " + (about.table || about.title).toLowerCase()));
    const figure = element("figure.chart", { tabindex: "0", role: "group", "aria-label": about.title + keys, onkeydown: (event) => view.key(event) },
      element("figcaption", {}, element("h3", {}, about.title, about.unit ? element("span.about", {}, about.unit) : null), legend), box);
    const chart = new Kind(about, lines, view, box, colours, bands);
    chart.frame = element("div.chart-and-table", { "data-chart": name }, figure, details);
    chart.legend = () => this.legend(chart, legend);
    chart.after = () => { if (details.open) this.tableOf(chart, details, view); };
    chart.moved = (x) => this.values(chart, legend, x);
    details.addEventListener("toggle", chart.after);
    this.charts.push(chart);
    return chart;
  }

  legend(chart, box) {
    const { element, swatch } = everywatt, theme = everywatt.theme();
    const buttons = chart.lines.map((line, i) => element("button.series", {
      type: "button", "aria-pressed": String(chart.shown[i]), title: line.about.channel,
      onclick: () => { chart.shown[i] = !chart.shown[i]; chart.draw(); this.legend(chart, box); },
    }, swatch(chart.colour(i, theme), chart.dash(i).length > 0), line.about.label, element("span.value", { "data-line": i })));
    // What is hidden at first is one click away where it would fill lines.
    const few = 3, later = buttons.filter((_, i) => !chart.lines[i].about.shown), folded = later.length > few ? later : [];
    box.replaceChildren(...buttons.filter((one) => !folded.includes(one)), ...(folded.length ? [element("details", { open: box.querySelector("details[open]") !== null }, element("summary", {}, folded.length + " more"), folded)] : []));
    this.values(chart, box, null);
  }

  values(chart, box, x) {
    const found = x === null || x === undefined ? [] : chart.at(x);
    const visible = chart.visible();
    for (const node of box.querySelectorAll("[data-line]")) {
      const value = found[visible.indexOf(Number(node.dataset.line))];
      node.textContent = !value ? "" : value.low === value.high ? everywatt.number(value.mean, chart.about.unit)
        : everywatt.number(value.mean, chart.about.unit) + " (" + everywatt.number(value.low) + " … " + everywatt.number(value.high) + ")";
    }
  }

  // The chart in rows: every tick in the window where there are few, else equal steps of time.
  tableOf(chart, details, view) {
    const most = 48, steps = 24, { a, b } = view, visible = chart.visible(), slices = chart.slices;
    let times = [...new Set(slices.flatMap((slice) => slice.t.filter((t) => t > a && t <= b)))].sort((x, y) => x - y);
    if (times.length > most) times = Array.from({ length: steps }, (_, i) => a + (b - a) * (i + 1) / steps);
    const heads = ["until", ...visible.map((i) => chart.lines[i].about.label + (chart.about.unit ? " (" + chart.about.unit + ")" : ""))];
    const body = times.map((t, row) => [chart.time(t, b - a), ...slices.map((slice, k) => this.cell(chart.lines[visible[k]], slice, row ? times[row - 1] : a, t))]);
    const table = everywatt.table(chart.about.title + " in this window: mean (min … max)", heads, body, heads.map((_, i) => i));
    details.replaceChildren(details.firstElementChild, table);
  }

  // What a line did after `from` and until `to`.
  cell(line, slice, from, to) {
    const first = everywatt.place(slice.t, from + 1e-9), last = Math.min(everywatt.place(slice.t, to - 1e-9), slice.t.length - 1);
    const known = [];
    for (let i = first; i <= last; i++) if (slice.mean[i] !== null && (line.held || slice.t[i] <= to)) known.push(i);
    if (!known.length) return "–";
    const low = Math.min(...known.map((i) => slice.low[i])), high = Math.max(...known.map((i) => slice.high[i]));
    if (low === high) return everywatt.number(low);
    const mean = line.held ? line.meanOf(from, to) : known.reduce((sum, i) => sum + slice.mean[i], 0) / known.length;
    return everywatt.number(mean) + " (" + everywatt.number(low) + " … " + everywatt.number(high) + ")";
  }

  windowMoved(run) {
    const { a, b } = this.view, span = b - a;
    const power = this.made.find((chart) => chart.about.id === "power");
    const counted = power ? power.lines.filter((line) => line.about.in_total) : [];
    const joules = counted.reduce((sum, line) => sum + line.integral(a, b), 0);
    const { element } = everywatt;
    const words = [element("b", {}, everywatt.seconds(a, span) + " – " + everywatt.seconds(b, span))];
    const known = this.view.atHome() && run.energy.joules !== null ? run.energy.shown : null;
    const rest = known && span - run.duration_s > 0.01 * span ? " without " + everywatt.number(span - run.duration_s, "s") + " between its parts" : "";
    const figure = element("span", { "data-figure": known ? "exact" : "about" }, known ? known + rest : "about " + everywatt.rounded(joules, "J", run.energy));
    const mean = (shown) => element("span", {}, "mean " + shown);
    const means = counted.map((line) => line.meanOf(a, b)).filter((mean) => mean !== null);
    const unread = counted.filter((line) => line.meanOf(a, b) === null).map((line) => line.about.label);
    if (known && run.mean_shown) words.push(mean(run.mean_shown), figure);
    else if (means.length) words.push(mean(everywatt.rounded(means.reduce((sum, mean) => sum + mean, 0), "W", run.energy)), figure, ...(unread.length ? ["without " + unread.join(", ") + ", which was not read here"] : []));
    else if (counted.length) words.push("nothing was read");
    if (means.length && !known) this.exactly(run, a, b, figure);
    const command = "everywatt show " + run.argument + " --between " + a.toFixed(6) + " " + b.toFixed(6);
    this.readout.replaceChildren(...words.flatMap((word, i) => i ? [" · ", word] : [word]), " ", everywatt.copyButton("Copy the command for this window", () => command));
    const exact = this.made.every((chart) => chart.exact());
    const whole = this.made.every((chart) => chart.lines.every((line) => line.exact));
    const any = this.made.some((chart) => chart.lines.some((line) => line.meanOf(a, b) !== null));
    this.depth.textContent = !this.made.length ? "This run has no ticks to plot." : !any ? "There are no ticks in this window."
      : exact ? "All ticks in this window are drawn."
      : whole ? "Bands show minimum to maximum, lines show means; zoom in to see every tick."
      : "Bands show minimum to maximum, lines show means. This file contains every tick only around peaks and steps; `everywatt report --raw` keeps all of them.";
    this.depth.dataset.exact = String(exact);
  }

  // The figure of a window with its interval needs the recording: a file has none, a server does (ServedPage).
  exactly() {}

  toPeak() {
    const power = this.made.find((chart) => chart.about.id === "power") || this.made[0];
    if (!power) return;
    const peaks = power.visible().map((i) => power.lines[i].peak()).filter(Boolean);
    if (!peaks.length) return;
    const peak = peaks.reduce((best, one) => one.value > best.value ? one : best);
    const room = Math.max(peak.end - peak.start, 1e-5) * 10;
    this.view.set(peak.start - room, peak.end + room);
  }

  // A meter's total and the chips' are two figures; what lies between is a third, and nothing is added.
  wall(run) {
    const { element, section, bars } = everywatt, found = run.wall;
    if (!found) return null;
    const rows = [["At the wall", found.devices.join(", "), found.wall], ["Chips", found.chips.scope, found.chips], ["Not explained by the chips", everywatt.percent(found.share) + " of the wall", found.unexplained]];
    // The meter has the colour of its curve; so has a chip that is alone.
    const chips = run.devices.filter((device) => device.in_total), free = this.freePlace;
    const places = [this.placeOf(found.devices[0]) ?? free + 2, chips.length === 1 ? this.colourOf(chips[0]) : free + 1, free];
    const make = () => bars("Wall and chips", rows.map(([name, about, energy], i) => ({
      name, about, value: energy.joules, low: energy.low, high: energy.high, shown: energy.shown, colour: this.colour(places[i]),
    })));
    return section("wall", "Wall and chips", "Only the meter sees fans, disks, memory, voltage regulators and the power supply.", this.themed(make),
      found.remark ? element("p.warnings", { role: "note" }, found.remark + ".") : null,
      everywatt.pairs([["Chips' clock − meter's", found.clock], ["Overhead", found.overhead || "not fitted: too little time, or the chips' power hardly varied"]]));
  }

  owners(run) {
    const { element, section, bars, table } = everywatt, ledger = run.ledger;
    if (!ledger || ledger.refused) return section("owners", "Owners", null, element("p.about", {}, "No ledger: " + (ledger ? ledger.refused : "not requested") + "."));
    const special = new Set(["idle", "other", "meter", "unattributed"]);
    const owners = ledger.owners.filter((entry) => !special.has(entry.owner.kind));
    if (ledger.rest) owners.push({ ...ledger.rest, owner: { kind: "rest", id: "", label: ledger.rest.owners + (owners.length ? " more" : " owners") }, method: "" });
    owners.push(...ledger.owners.filter((entry) => special.has(entry.owner.kind)));
    const share = (entry) => ledger.total.joules ? entry.energy.joules / ledger.total.joules : null;
    const about = ({ kind, id }) => kind === "process" ? "process " + id.split(":")[0] : special.has(kind) || kind === "rest" ? null : kind;
    const make = () => bars("Energy by owner", owners.map((entry) => ({
      name: entry.owner.label, about: about(entry.owner), value: entry.energy.joules, low: entry.energy.low, high: entry.energy.high, shown: entry.energy.shown,
      share: share(entry), colour: this.colour(special.has(entry.owner.kind) ? 7 : 6),
    })));
    const use = (entry, name) => entry.use[name] === undefined ? "–" : entry.use[name].toFixed(2);
    return section("owners", "Owners", "Every joule of " + ledger.total.shown + " has an owner; idle energy is one of its own.", this.themed(make),
      ledger.notes.length ? element("ul.notes", {}, ledger.notes.map((note) => element("li", {}, note))) : null,
      element("details", {}, element("summary", {}, "Table of owners"), table("Owners", ["Owner", "Kind", "Energy", "Share", "CPU s", "GPU s", "Method"],
        owners.map((entry) => [entry.owner.label, entry.owner.kind, entry.energy.shown, everywatt.percent(share(entry)), use(entry, "cpu_s"), use(entry, "gpu_s"), entry.method || "–"]), [2, 3, 4, 5])));
  }

  phases(run) {
    const { element, section, bars, table } = everywatt, phases = run.phases.rows;
    if (!phases.length) return null;
    const names = run.bands.names, colour = (name) => this.colour(Math.max(0, names.indexOf(name)) + 3);
    const make = () => bars("Energy by phase", phases.map((phase) => ({
      name: phase.name, about: (phase.count > 1 ? phase.count + " times, " : "") + phase.seconds_shown, value: phase.energy.joules, low: phase.energy.low, high: phase.energy.high,
      shown: phase.energy.shown, share: phase.idle ? null : phase.share, colour: colour(phase.name),
    })));
    const shared = run.phases.overlap ? " Each includes everything drawn while it ran, so concurrent spans overlap." : "";
    const more = run.phases.count > phases.length ? " The " + phases.length + " longest of " + run.phases.count + " names." : "";
    const drawn = run.bands.count > run.bands.kept ? " The " + run.bands.kept + " longest of " + run.bands.count + " spans are drawn as bands." : "";
    return section("phases", "Phases", "Spans of the same name are added up." + shared + more + drawn, this.themed(make),
      element("details", {}, element("summary", {}, "Table of phases"), table("Phases", ["Phase", "Count", "Time", "Energy", "Mean power", "Each", "Share of the run"],
        phases.map((phase) => [phase.name, String(phase.count), phase.seconds_shown, phase.energy.shown, phase.mean_shown || "–", phase.each_shown || "–", phase.idle ? "–" : everywatt.percent(phase.share)]), [1, 2, 3, 4, 5, 6])));
  }

  quality(run) {
    const { element, section, table } = everywatt, quality = run.quality;
    const facts = [quality.gap_count ? quality.gap_count + (quality.gap_count === 1 ? " gap, " : " gaps, ") + everywatt.number(quality.gap_s, "s") + " added up over the sensors" : everywatt.partly(run.energy) || (run.devices.some((device) => device.power.samples) ? "no gaps" : "no power was read during the run")].concat(quality.sealed ? [] : ["the tape was not sealed"], quality.meter ? [quality.meter + " over the whole recording"] : []);
    const titled = (title, heads, rows, right) => rows.length ? [element("h3", {}, title), table(title, heads, rows, right)] : [];
    return section("quality", "Quality", facts.join(" · "),
      ...titled("Devices", ["Device", "Sensor", "Energy", "Mean", "Min", "Median", "Max", "Ticks", "In the total"],
        run.devices.map((device) => [device.name + (device.label ? " · " + device.label : ""), device.sensor, device.energy.shown, ...device.power_shown, everywatt.number(device.power.samples), device.in_total ? "yes" : "no"]), [2, 3, 4, 5, 6, 7]),
      ...titled("Rates", ["Group", "Requested", "Achieved", "Rows"], quality.rates.map((rate) => [rate.name, rate.requested_shown, rate.achieved_shown, everywatt.number(rate.rows)]), [1, 2, 3]),
      run.causes.length ? element("details", {}, element("summary", {}, "Where the interval comes from"), table("Error budget", ["Source", "± J", "± %", "Meaning", "How to narrow it"], run.causes.map((cause) => [cause.source, everywatt.number(cause.half_width_j), cause.percent === null ? "–" : cause.percent.toFixed(2), cause.meaning, cause.cure]), [1, 2])) : null,
      quality.gaps.length ? element("details", {}, element("summary", {}, "Table of gaps"), table("Gaps", ["Group", "Kind", "Start", "Length"], quality.gaps.map((gap) => [gap.group, gap.kind, everywatt.seconds(gap.start_s, 1), everywatt.number(gap.duration_s, "s")]), [2, 3])) : null);
  }

  carbon(run) {
    const { element, section, table } = everywatt;
    if (!run.carbon) return section("carbon", "Carbon and cost", null, element("p.about", {}, "Not configured. They depend on factors that no sensor measures: everywatt report " + run.argument + " --country FR --pue 1.2 --price '0.25 EUR'"));
    const rows = run.carbon.rows.map((row) => [[row.label, element("span.about", {}, row.how)], row.shown]);
    return section("carbon", "Carbon and cost", "Computed from configured factors, separate from joules. The interval is that of the energy; factors are taken as exact.",
      table("Carbon and cost", ["", "Amount"], rows, [1]),
      run.carbon.equivalents.length ? element("p.about", {}, "Equivalent to " + run.carbon.equivalents.join(", or ") + ".") : null);
  }

  // What it was recorded on, below the command that would do it again.
  provenance({ reproduce, provenance }) {
    const { element, section } = everywatt;
    return section("provenance", "Environment", null,
      reproduce ? element("div.reproduce", {}, element("code", {}, reproduce), everywatt.copyButton("Copy the command to reproduce", () => reproduce)) : null,
      everywatt.pairs(provenance));
  }

  comparison() {
    const { element, section, bars, table } = everywatt, found = this.report.comparison;
    const make = () => bars("Energy by run", found.rows.map((entry, i) => ({
      name: entry.name, about: [entry.energy.scope, entry.energy.pedigree, everywatt.partly(entry.energy)].filter(Boolean).join(" · "), value: entry.energy.joules, low: entry.energy.low, high: entry.energy.high,
      shown: entry.energy.shown + (entry.ratio ? " · " + entry.ratio.shown.split(" ")[0] + "×" : ""), colour: this.colour(i),
    })));
    this.overlayBox = element("div.charts");
    return section("comparison", "Comparison", null,
      found.mixed_scopes ? element("p.warnings", { role: "note" }, "These runs do not cover the same scope. Runs of a different scope get no ratio; do not compare their joules.") : null,
      this.themed(make, true),
      table("Compared runs", ["Run", "Energy", "Scope", "Duration", "Mean power", "Ratio to the first", "Verdict"],
        found.rows.map((entry) => [entry.name, entry.energy.shown, entry.energy.scope || "–", entry.duration_shown, entry.mean_shown, entry.ratio ? entry.ratio.shown : "–", entry.verdict || entry.why]), [1, 3, 4, 5]),
      this.overlayBox);
  }

  // The power of every run, from its own start. Devices that were not recorded over the same time have no sum.
  async overlay() {
    const parts = (run) => run.charts.filter((chart) => chart.id === "power").flatMap((chart) => chart.lines.filter((line) => line.in_total || line.label === "total"));
    const pick = (lines) => lines.find((line) => line.label === "total") || (lines.length === 1 ? lines[0] : null);
    const drawn = this.report.runs.filter((run) => pick(parts(run))), apart = this.report.runs.filter((run) => parts(run).length && !pick(parts(run)));
    if (apart.length) this.overlayBox.append(everywatt.element("p.about", {}, "Not drawn, because the devices were not recorded over the same time: " + apart.map((run) => run.name).join(", ")));
    if (!drawn.length) return;
    const abouts = drawn.map((run) => ({ ...pick(parts(run)), label: run.name, shown: true, in_total: false, origin_s: run.run_s[0] }));
    const spans = drawn.map(({ run_s: [start, end], extent_s: [first, last] }) => [first - start, end - start, last - start]);
    const view = new everywatt.Window(Math.min(...spans.map(([first]) => first)), Math.max(...spans.map(([, , last]) => last)), [0, Math.max(...spans.map(([, end]) => end))]);
    const lines = await Promise.all(abouts.map((about) => everywatt.Line.of(about)));
    const about = { id: "power", title: "Power of each run, from its start", table: "power", unit: "W", lines: abouts };
    const chart = this.chart(about, lines, view, (line) => this.report.runs.indexOf(drawn[abouts.indexOf(line)]), { keys: ". Arrow keys move and zoom.", name: "overlay" });
    chart.kept = true;
    this.overlayBox.append(chart.frame);
    chart.draw();
    chart.legend();
  }
};

everywatt.start = function () {
  const report = JSON.parse(document.getElementById("document").textContent);
  const Kind = report.kind === "precision" ? everywatt.PrecisionPage : report.trials ? everywatt.TrialsPage : everywatt.Page;
  const page = new Kind(report, document.getElementById("page"));
  everywatt.page = page;
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => page.redraw());
  matchMedia("print").addEventListener("change", () => page.redraw());
  return page.show();
};

// When all scripts are there; a page that gets its document in another way starts by itself.
document.addEventListener("DOMContentLoaded", () => { if (document.getElementById("document")) everywatt.start(); });
