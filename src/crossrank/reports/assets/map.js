// The map of crosses: cells on a canvas, names and cursor in an SVG above it. Colours are transparent tints, so that
// the paper below may be light or dark.
const MANY = 30; // features that a map shows at once, unless asked for all

function drawMap() {
  const known = runs.filter((run) => run.crosses);
  if (!known.length) return;
  const [runBox, layerBox, measureBox, viewBox, orderBox] = ["map-run", "layer", "measure", "view", "order"].map((name) => control(name));
  const manyBox = control("how-many");
  const place = find("[data-map]"), readout = find("[data-readout]");
  const svgTag = (tag, attributes = {}) => {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    return made;
  };
  const svg = svgTag("svg", { tabindex: 0, role: "application", "aria-label": "Map of crosses: a row and a column for each feature. Arrow keys move, Enter sorts by the row, Escape resets." });
  const canvas = element("canvas");
  place.append(canvas, svg);
  let names, matrices, order, ranking, cursor = null, size, gutter;

  const digits = (number) => number.toFixed(number < 0.1 ? 4 : number < 1 ? 3 : 2);
  const at = (i, j) => i * names.length + j;
  const directed = () => viewBox.value === "directed";
  function value(i, j, measure = measureBox.value, oneWay = directed()) {
    if (measure === "strength") return (oneWay ? matrices.strengths : matrices.pairs)[at(i, j)];
    const norms = matrices.norms;
    return oneWay || i === j ? norms[at(i, j)] : Math.hypot(norms[at(i, j)], norms[at(j, i)]);
  }
  function rank() {
    const pairs = [];
    names.forEach((_, i) => names.forEach((_, j) => { if (directed() ? i !== j : i < j) pairs.push([value(i, j), i, j]); }));
    return pairs.sort((a, b) => b[0] - a[0]).map(([, i, j]) => [i, j]);
  }
  const sign = () => (directed() ? " → " : " × ");

  function load() {
    const crosses = known[runBox.value || 0].crosses;
    const layer = Math.min(layerBox.value || 0, crosses.layers.length - 1);
    names = crosses.names;
    matrices = crosses.layers[layer];
    fill(layerBox, crosses.layers.map((one, i) => [i, one.label]), layer);
    const chosen = orderBox.value;
    fill(orderBox, [["strength", "strongest first"], ["schema", "as in the data"], ...names.map((name, i) => [`by ${i}`, `by ${name}`])], "strength");
    if ([...orderBox.options].some((option) => option.value === chosen)) orderBox.value = chosen;
    const many = names.length > MANY + 10;
    find('[data-part="how-many"]').hidden = !many;
    fill(manyBox, [...(many ? [["some", `the first ${MANY}`]] : []), ["all", `all ${names.length}`]], many ? manyBox.value || "some" : "all");
    refresh();
  }

  function refresh() {
    order = d3.range(names.length);
    ranking = rank();
    const by = orderBox.value;
    const total = (i) => d3.sum(names, (_, j) => (i === j ? 0 : value(i, j) + value(j, i)));
    if (by === "strength") order = d3.sort(order, (i) => -total(i));
    if (by.startsWith("by ")) {
      const row = Number(by.slice(3));
      order = d3.sort(order, (j) => (j === row ? -Infinity : -value(row, j)));
    }
    if (manyBox.value === "some") order = order.slice(0, MANY);
    if (cursor?.some((place) => place >= order.length)) cursor = null;
    paint();
    list();
    read();
  }

  function paint() {
    const count = order.length, room = place.clientWidth;
    const letters = Math.min(24, Math.max(8, Math.floor(room / 26)), d3.max(names, (name) => name.length));
    const shown = shorten(names, letters);
    gutter = 14 + Math.ceil(6.9 * d3.max(shown, (name) => name.length));
    size = Math.max(13, Math.min(46, Math.floor((room - gutter - 2) / count)));
    const side = count * size, whole = gutter + side + 2, scale = 2;
    svg.setAttribute("width", whole);
    svg.setAttribute("height", whole);
    Object.assign(canvas, { width: side * scale, height: side * scale });
    Object.assign(canvas.style, { width: `${side}px`, height: `${side}px`, left: `${gutter}px`, top: `${gutter}px` });
    const style = getComputedStyle(document.documentElement), pen = canvas.getContext("2d");
    const tint = style.getPropertyValue("--map"), self = style.getPropertyValue("--self");
    const top = value(...ranking[0] || [0, 0]) || 1, gap = 1;
    pen.scale(scale, scale);
    order.forEach((i, row) => order.forEach((j, column) => {
      const share = Math.min(1, value(i, j) / top);
      pen.fillStyle = `rgba(${i === j ? self : tint}, ${(0.04 + 0.96 * share).toFixed(3)})`;
      pen.fillRect(column * size, row * size, size - gap, size - gap);
    }));
    svg.replaceChildren(svgTag("rect", { class: "frame", x: gutter - 1.5, y: gutter - 1.5, width: side + 2, height: side + 2 }));
    const rows = svgTag("g", { class: "rows" });
    rows.append(svgTag("rect", { class: "shade", width: gutter - 2, height: whole }));
    order.forEach((i, row) => {
      const middle = gutter + (row + 0.5) * size;
      const left = svgTag("text", { x: gutter - 6, y: middle, "text-anchor": "end", "dominant-baseline": "central" });
      const above = svgTag("text", { transform: `translate(${middle},${gutter - 6}) rotate(-90)`, "dominant-baseline": "central" });
      left.textContent = above.textContent = shown[i];
      for (const text of [left, above]) text.dataset.feature = i;
      rows.append(left);
      svg.append(above);
    });
    svg.append(rows);
    follow();
    mark();
  }
  // The names of rows stay in sight where the map is wider than its frame.
  function follow() {
    find(".rows", svg)?.setAttribute("transform", `translate(${place.scrollLeft},0)`);
  }
  function mark() {
    for (const old of svg.querySelectorAll(".cursor, .pointed")) old.classList.contains("cursor") ? old.remove() : old.classList.remove("pointed");
    if (!cursor) return;
    const box = svgTag("rect", { class: "cursor", x: gutter + cursor[1] * size - 0.5, y: gutter + cursor[0] * size - 0.5, width: size, height: size });
    svg.insertBefore(box, find(".rows", svg));
    find(`.rows [data-feature="${order[cursor[0]]}"]`, svg).classList.add("pointed");
    find(`:scope > [data-feature="${order[cursor[1]]}"]`, svg).classList.add("pointed");
  }

  function read() {
    if (!cursor) {
      const first = ranking[0];
      readout.replaceChildren(first ? `Strongest: ${names[first[0]]}${sign()}${names[first[1]]}.` : "");
      return;
    }
    const [i, j] = [order[cursor[0]], order[cursor[1]]];
    const place = 1 + ranking.findIndex(([a, b]) => (a === i && b === j) || (!directed() && a === j && b === i));
    const rank = place ? `, number ${place.toLocaleString("en")} of ${ranking.length.toLocaleString("en")}` : ", with itself";
    const ways = i === j ? "" : ` · ${names[i]} → ${names[j]} ${digits(matrices.strengths[at(i, j)])}, ${names[j]} → ${names[i]} ${digits(matrices.strengths[at(j, i)])}`;
    readout.replaceChildren(
      element("b", {}, `${names[i]}${sign()}${names[j]}`), rank, element("br"),
      `strength ${digits(value(i, j, "strength"))} · norm ${digits(value(i, j, "norm"))}${ways}`);
  }

  function list() {
    const shown = shorten(names, 22), long = d3.max(shown, (name) => name.length) > 18;
    const rows = (pairs, title) => {
      const top = pairs.length ? value(...pairs[0]) || 1 : 1;
      return table(["", title, "", "strength", "norm"], pairs.map(([i, j], place) => {
        const title = i === j ? names[i] : `${names[i]}${sign()}${names[j]}`;
        const button = element("button", { class: "pair", type: "button", title, "data-cell": `${i},${j}` });
        button.append(element("span", {}, shown[i] + (i === j ? "" : sign().trimEnd())), ...(i === j ? [] : [" ", element("span", {}, shown[j])]));
        button.onclick = () => { sortBy(i, j); };
        const bar = long ? "" : element("span", { class: "bar", style: `width: ${(3.5 * value(i, j)) / top}rem` });
        return [String(place + 1), button, bar, digits(value(i, j, "strength")), digits(value(i, j, "norm"))];
      }), [0, 1, 2]);
    };
    find('[data-part="pairs"]').hidden = !ranking.length;
    find('[data-table="pairs"]').replaceChildren(rows(ranking.slice(0, 15), "pair"));
    const selves = d3.sort(d3.range(names.length).map((i) => [i, i]), ([i]) => -value(i, i));
    find('[data-table="selves"]').replaceChildren(rows(selves.slice(0, 5), "feature"));
  }

  function sortBy(i, j) {
    orderBox.value = `by ${i}`;
    refresh();
    if (order.includes(j)) move(order.indexOf(i), order.indexOf(j));
  }
  function move(row, column) {
    cursor = [row, column];
    mark();
    read();
  }
  function cellOf(event) {
    const box = svg.getBoundingClientRect();
    const [row, column] = [event.clientY - box.top, event.clientX - box.left].map((offset) => Math.floor((offset - gutter) / size));
    const inside = (place) => place >= 0 && place < order.length;
    return inside(row) && inside(column) ? [row, column] : inside(row) && column < 0 ? [row, row] : inside(column) && row < 0 ? [column, column] : null;
  }
  svg.addEventListener("pointermove", (event) => { const cell = cellOf(event); if (cell) move(...cell); });
  svg.addEventListener("click", (event) => { const cell = cellOf(event); if (cell) sortBy(order[cell[0]], order[cell[1]]); });
  svg.addEventListener("keydown", (event) => {
    const [row, column] = cursor || [0, 0], last = order.length - 1;
    const steps = { ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1] }[event.key];
    if (steps) move(Math.max(0, Math.min(last, row + steps[0])), Math.max(0, Math.min(last, column + steps[1])));
    else if (event.key === "Enter") sortBy(order[row], order[column]);
    else if (event.key === "Escape") { orderBox.value = "strength"; cursor = null; refresh(); }
    else return;
    event.preventDefault();
  });
  svg.addEventListener("focus", () => { if (!cursor) move(0, Math.min(1, order.length - 1)); });

  fill(runBox, known.map((run, i) => [i, run.name]), 0);
  runBox.onchange = layerBox.onchange = () => { cursor = null; load(); };
  measureBox.onchange = viewBox.onchange = orderBox.onchange = manyBox.onchange = refresh;
  place.addEventListener("scroll", follow);
  let width = 0;
  new ResizeObserver(() => { if (place.clientWidth !== width) { width = place.clientWidth; paint(); } }).observe(place);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", paint);
  // Paper is light, whatever the screen was.
  addEventListener("beforeprint", () => {
    document.documentElement.dataset.print = "";
    for (const part of document.querySelectorAll("details")) part.open = true;
    paint();
  });
  addEventListener("afterprint", () => { delete document.documentElement.dataset.print; paint(); });
  load();
}
drawMap();
for (const label of document.querySelectorAll("#crosses [data-several]")) label.hidden = runs.length < 2;
