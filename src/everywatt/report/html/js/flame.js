// Energy flame graphs: every node is a button as wide as its joules. Click or Enter zooms in, a node above or Escape out.
"use strict";

everywatt.flameSection = function (page, flames) {
  const { element, section } = everywatt;
  if (!flames || !flames.length) return null;
  const names = page.report.runs[page.run].bands.names;
  // A span has the colour of its band, a device that of its curve; the rest is grey.
  const colour = (name) => names.includes(name) ? names.indexOf(name) + 3 : page.placeOf(name) ?? 7;
  const boxes = flames.flatMap((flame) => {
    const box = element("div.flame-and-table");
    const draw = (path, focus) => everywatt.drawFlame(box, flame, path, draw, focus, colour);
    const again = () => draw(box.path || []);
    draw([]);
    page.coloured.push(again);
    return [flames.length > 1 ? element("h3", {}, flame.title) : null, box];
  });
  const least = flames.some((flame) => flame.left_out) ? "Nodes of less than 0.2 % of the run are left out. " : "";
  return section("flame", "Flame graph", ["Width is energy. " + least, element("span.hint", {}, "Click a node to zoom in; arrow keys move, Escape zooms out.")], ...boxes);
};

// Draw the nodes below the last of `path` (places of children), and the table of what is shown.
everywatt.drawFlame = function (box, flame, path, draw, focus, colour) {
  const { element } = everywatt, { palette } = everywatt.theme(), rows = [], lines = [];
  box.path = path;
  const node = (one, at, depth, left, share) => {
    const shade = palette[colour(one.name) % palette.length];
    // One stop of the Tab key for the graph; arrow keys go on from there.
    const button = element("button.flame", { type: "button", tabindex: at.length === path.length && depth === path.length ? "0" : "-1", title: one.name + ": " + one.shown, "aria-label": one.name + ", " + one.shown,
      onclick: () => draw(at, true), onkeydown: (event) => everywatt.flameKey(event, box, path, draw) }, one.name);
    button.style.left = 100 * left + "%";
    button.style.width = 100 * share + "%";
    button.style.top = 1.75 * depth + "rem";
    button.style.borderLeftColor = shade;
    button.style.background = "color-mix(in srgb, " + shade + " 28%, var(--card))";
    button.dataset.at = at.join(".");
    rows[depth] = (rows[depth] || []).concat(button);
    return button;
  };
  let zoomed = flame.root;
  node(zoomed, [], 0, 0, 1);
  path.forEach((place, i) => { zoomed = zoomed.children[place]; node(zoomed, path.slice(0, i + 1), i + 1, 0, 1); });
  const below = (one, at, depth, left) => {
    lines.push([" ".repeat(2 * (depth - path.length)) + one.name, one.shown, everywatt.percent(one.joules / flame.root.joules)]);
    let x = left;
    one.children.forEach((child, place) => {
      const share = child.joules / zoomed.joules;
      node(child, [...at, place], depth + 1, x, Math.min(share, 1 - x));
      below(child, [...at, place], depth + 1, x);
      x += share;
    });
  };
  below(zoomed, path, path.length, 0);
  const graph = element("div.flames", { role: "group", "aria-label": flame.title }, rows.flat());
  graph.style.height = 1.75 * rows.length + "rem";
  box.replaceChildren(graph, everywatt.table(flame.title, ["Name", "Energy", "Share"], lines, [1, 2]));
  if (focus) graph.querySelector('[data-at="' + path.join(".") + '"]').focus();
};

everywatt.flameKey = function (event, box, path, draw) {
  const buttons = [...box.querySelectorAll("button.flame")], levels = [...new Set(buttons.map((one) => one.style.top))];
  const rows = levels.map((level) => buttons.filter((one) => one.style.top === level));
  const next = everywatt.neighbour(rows, event.currentTarget, event.key, (one) => parseFloat(one.style.left));
  if (event.key === "Escape" && path.length) draw(path.slice(0, -1), true);
  if (next) { next.focus(); event.preventDefault(); }
};
