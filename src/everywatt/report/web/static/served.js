// The report's page, with its document from the server; a run that is being written has its live charts above.
"use strict";

everywatt.ServedPage = class extends everywatt.Page {
  // keys: the names of the runs in addresses
  constructor(report, root, before, keys) {
    super(report, root);
    Object.assign(this, { before, keys });
    everywatt.shell.redraws.push(() => this.redraw());
  }

  top() { return everywatt.shell.top("/run", this.title()); }

  // Asked for when the window rests; an answer that comes too late is dropped.
  exactly(run, a, b, figure) {
    clearTimeout(this.asking);
    this.asking = setTimeout(async () => {
      try {
        const found = await everywatt.ask("/api/window?" + new URLSearchParams([["run", this.keys[this.run]], ["a", Math.max(a, 0)], ["b", b]]));
        if (found.energy.joules === null) return;
        figure.textContent = found.energy.shown;
        figure.dataset.figure = "exact";
      } catch { /* then about */ }
    }, 250);
  }

  footer() { return "State of the files at " + this.report.made.replace("T", " ").replace("+00:00", " UTC") + "; everywatt " + this.report.everywatt + ". As one HTML file: " + this.report.command; }

  async show() {
    const shown = super.show();
    if (this.before) this.root.querySelector("main").prepend(this.before);
    await shown;
  }
};

everywatt.showRuns = async function (root, names) {
  const { element, shell } = everywatt;
  const title = names.length > 1 ? names.length + " runs compared" : names[0] || "Compare";
  const main = element("main", { id: "main" }, shell.waiting("Reading …"));
  root.replaceChildren(shell.top("/run", title), main);
  try {
    if (!names.length) throw new Error("Select runs in the list to compare them.");
    const list = names.length === 1 ? await everywatt.ask("/api/runs") : null;
    const live = list && list.runs.some((run) => run.key === names[0] && run.live);
    const report = await everywatt.ask("/api/report?" + new URLSearchParams(names.map((name) => ["run", name])));
    const before = live ? element("div.run.now-writing") : null;
    const page = everywatt.page = new everywatt.ServedPage(report, root, before, names);
    if (live) {
      const board = everywatt.board = new everywatt.Board("/api/live?" + new URLSearchParams([["run", names[0]]]), before,
        { title: "This run, now", since: "since", waiting: "Waiting for readings of this run …", ended: () => location.reload() });
      board.show();
    }
    await page.show();
  } catch (error) {
    main.replaceChildren(shell.trouble(error.message), element("p", {}, element("a", { href: "/" }, "Back to the list of runs")));
    if (!main.isConnected) root.replaceChildren(shell.top("/run", title), main);
    document.documentElement.dataset.ready = "true";
  }
};
