// Which page this is, from its address.
"use strict";

everywatt.open = function () {
  const root = document.getElementById("page"), path = location.pathname;
  everywatt.shell.begin();
  if (path.startsWith("/run/")) {
    let name = path.slice(5);
    try { name = decodeURIComponent(name); } catch { /* then as it is */ }
    return everywatt.showRuns(root, [name]);
  }
  if (path === "/compare") return everywatt.showRuns(root, [...new Set(new URLSearchParams(location.search).getAll("run"))]);
  if (path === "/live") {
    const box = everywatt.element("div.run"), { shell } = everywatt;
    root.replaceChildren(shell.top("/live", "Live power"), everywatt.element("main", { id: "main" }, box));
    everywatt.board = new everywatt.Board("/api/live", box, { title: "Power now", since: "since", waiting: "Starting the sensors …" });
    return everywatt.board.show();
  }
  if (path !== "/") {
    const { element, shell } = everywatt;
    root.replaceChildren(shell.top("", "Not found"), element("main", { id: "main" }, shell.trouble("There is no page at " + path + "."),
      element("p", {}, element("a", { href: "/" }, "Back to the list of runs"))));
    document.documentElement.dataset.ready = "true";
    return null;
  }
  everywatt.list = new everywatt.RunList(root);
  return everywatt.list.show();
};

everywatt.open();
