"use strict";
// Sorting: a click on a heading orders its column, a second one turns the order round.
for (const table of document.querySelectorAll("table.sortable")) {
  const heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    head.tabIndex = 0;
    const sort = () => {
      const up = head.getAttribute("aria-sort") !== "ascending";
      heads.forEach((h) => h.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", up ? "ascending" : "descending");
      const key = (row) => row.cells[column].dataset.v ?? row.cells[column].textContent;
      const order = (a, b) => {
        const x = key(a), y = key(b);
        if (x === "" || y === "") return (x === "") - (y === "");  // what is not there comes last, either way
        const compared = isNaN(x) || isNaN(y) ? x.localeCompare(y) : x - y;
        return up ? compared : -compared;
      };
      table.tBodies[0].append(...[...table.tBodies[0].rows].sort(order));
    };
    head.addEventListener("click", sort);
    head.addEventListener("keydown", (event) => { if (event.key === "Enter") sort(); });
  });
}

// Long texts are cut to a few lines; a click shows all of one.
for (const text of document.querySelectorAll(".clamp")) {
  if (text.scrollHeight > text.clientHeight + 2) {
    text.style.cursor = "pointer";
    text.title = "click to show all";
    text.addEventListener("click", () => text.classList.toggle("all"));
  }
}

// Curves: the values under the pointer, read back from the lines themselves.
const tip = document.createElement("div");
tip.className = "tip";
tip.hidden = true;
document.body.append(tip);
const short = (v) => (Math.abs(v) >= 1e4 || (v && Math.abs(v) < 1e-3) ? v.toExponential(2) : String(+v.toPrecision(4)));
for (const svg of document.querySelectorAll("svg.curves")) {
  const scale = (text) => {
    const [a, from, b, to] = text.split(",").map(Number);
    return (px) => from + ((px - a) / (b - a)) * (to - from);
  };
  const toX = scale(svg.dataset.x), toY = scale(svg.dataset.y);
  const lines = [...svg.querySelectorAll("path[data-label]")].filter((p) => !p.classList.contains("rest")).map((path) => ({
    label: path.dataset.label,
    points: [...path.getAttribute("d").matchAll(/[ML]([-\d.]+) ([-\d.]+)/g)].map((m) => [+m[1], +m[2]]),
  }));
  const cursor = document.createElementNS(svg.namespaceURI, "path");
  cursor.setAttribute("class", "cursor");
  svg.append(cursor);
  const [bottom, , top] = svg.dataset.y.split(",").map(Number);
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    const at = ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width;
    const near = lines.map((line) => ({
      label: line.label,
      point: line.points.reduce((best, p) => (Math.abs(p[0] - at) < Math.abs(best[0] - at) ? p : best), line.points[0]),
    }));
    if (!near.length) return;
    const x = near.map((n) => n.point[0]).reduce((best, p) => (Math.abs(p - at) < Math.abs(best - at) ? p : best));
    cursor.setAttribute("d", `M${x} ${bottom}V${top}`);
    tip.textContent = [`at ${short(toX(x))}`, ...near.filter((n) => Math.abs(n.point[0] - x) < 12)
      .map((n) => `${n.label}  ${short(toY(n.point[1]))}`)].join("\n");
    tip.hidden = false;
    const left = event.clientX + 16 + tip.offsetWidth < innerWidth ? event.clientX + 16 : event.clientX - 16 - tip.offsetWidth;
    tip.style.left = `${left}px`;
    tip.style.top = `${event.clientY - 10}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; cursor.removeAttribute("d"); });
}
