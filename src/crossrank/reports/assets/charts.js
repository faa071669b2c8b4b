"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const runs = content.runs;
const colors = ["--a1", "--a2", "--a3", "--a4", "--a5", "--a6"].map((name) => `var(${name})`);
runs.forEach((run, i) => { run.color = colors[i % colors.length]; });
const find = (selector, inside = document) => inside.querySelector(selector);
const control = (name, inside) => find(`[data-control="${name}"]`, inside);
const number = (value, digits = 4) => (value == null ? "–" : d3.format(`.${digits}f`)(value));
const percent = d3.format(".3~p");
const tenths = d3.format(".1%");
// A number of any size by its leading digits, never cut before the point.
const amount = (value) => (value == null ? "–" : d3.format(Math.abs(value) >= 1e5 ? ",.0f" : ",.5~r")(value));
const decades = [1, 0.1, 0.01, 0.001, 1e-4];

// Text from the data goes in as text, never as markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(headers, rows, words = [0]) {
  const cell = (tag, value, i) => element(tag, { ...(words.includes(i) ? {} : { class: "n" }), ...(tag === "th" ? { scope: "col" } : {}) }, value);
  const head = element("thead", {}, element("tr", {}, ...headers.map((name, i) => cell("th", name, i))));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell("td", value, i)))));
  return element("table", {}, head, body);
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
  if (chosen != null) select.value = chosen;
}

// Long names without what all begin with, and cut in the place that leaves most of them apart.
function shorten(names, most) {
  let start = 0;
  while (names.length > 1 && names.every((name) => start < name.length && name[start] === names[0][start])) start += 1;
  if (start < 4) start = 0;
  const lead = start ? "…" : "", room = most - 1 - lead.length;
  const cut = (name, front) => {
    if (name.length <= most) return name;
    const rest = name.slice(start);
    return lead + (rest.length < most ? rest : `${rest.slice(0, front)}…${rest.slice(rest.length - (room - front))}`);
  };
  const fronts = d3.sort(d3.range(room + 1), (front) => Math.abs(front - room / 2));
  return d3.greatest(fronts.map((front) => names.map((name) => cut(name, front))), (some) => new Set(some).size);
}

// Numbers along an axis: 20k instead of 20,000, and years as they are written.
function axisFormat(values) {
  return d3.max(values, Math.abs) >= 1e4 ? d3.format("~s") : (value) => String(Number(value.toPrecision(6)));
}

// Steps and ranks are whole.
const wholeTicks = (values, width) => d3.ticks(...d3.extent(values), width / 80).filter(Number.isInteger);

// Each chart is drawn for the width it has, and again when that changes.
function draw(place, label, build, legend = []) {
  const key = element("div", { class: "legend" }, ...legend.map(([name, color, style]) =>
    element("span", {}, element("i", { class: style || "", style: `color: ${color}` }), name)));
  const canvas = element("div");
  place.prepend(key, canvas);
  let width = 0;
  const render = () => {
    const room = Math.floor(canvas.clientWidth);
    if (!room || room === width) return;
    width = room;
    const options = {
      width, marginLeft: 34, marginTop: 28, marginBottom: 40, insetRight: 5, ariaLabel: label, style: { fontFamily: "inherit", fontSize: "12px", background: "none", color: "var(--ink)" },
      ...build(width),
    };
    const plot = (marginLeft) => { canvas.replaceChildren(Plot.plot({ ...options, marginLeft })); };
    const ticks = (axis) => [...canvas.querySelectorAll(`[aria-label="${axis}-axis tick label"] text`)];
    plot(options.marginLeft);
    const widest = Math.ceil(d3.max(ticks("y"), (text) => text.getBoundingClientRect().width) || 0) + 14;
    if (widest > options.marginLeft) plot(widest);
    let end = -Infinity;
    for (const text of d3.sort(ticks("x"), (one) => one.getBoundingClientRect().left)) {
      const box = text.getBoundingClientRect();
      if (box.left < end + 4) text.remove();
      else end = box.right;
    }
    canvas.firstChild.setAttribute("role", "img");
  };
  new ResizeObserver(render).observe(canvas);
  render();
}

const tip = (points, title) => Plot.tip(points, Plot.pointer({ x: "x", y: "y", title, fontSize: 12, textPadding: 6 }));
const legendOf = (shown) => (shown.length > 1 ? shown.map((run) => [run.name, run.color]) : []);
const diagonal = ([low, high]) => Plot.line([[low, low], [high, high]], { stroke: "var(--muted)", strokeDasharray: "2 3" });

function drawSpectra() {
  const place = find('[data-chart="spectra"]');
  const layers = runs.flatMap((run) => run.spectra.map((layer) => ({ ...layer, run: run.name })));
  for (const layer of layers) {
    const kinds = [["initial", layer.initial, "var(--muted)", "dashed"], ["learned", layer.values, colors[0]], ["as used", layer.used, colors[1]]]
      .filter(([, values]) => values.length);
    const points = kinds.flatMap(([name, values, color]) => values.map((value, i) => ({
      x: 1 + (i * (layer.width - 1)) / Math.max(values.length - 1, 1), y: value / values[0], name, color,
    })).filter((point) => point.y >= decades[4]));
    const lowest = d3.min(points, (point) => point.y);
    const figure = element("figure", {}, element("figcaption", {}, element("b", {}, (runs.length > 1 ? `${layer.run}, ` : "") + layer.label)));
    place.append(figure);
    draw(figure, `Singular values of ${layer.label}`, (width) => ({
      height: 260, x: { label: "k", ticks: wholeTicks([1, layer.width], width) }, y: { type: "log", label: "σₖ / σ₁", grid: true, ticks: decades.filter((tick) => tick >= lowest), tickFormat: "~g" },
      marks: [
        ...kinds.map(([name, , color, style]) => Plot.line(points.filter((point) => point.name === name), { x: "x", y: "y", stroke: color, strokeWidth: style ? 1.25 : 2, strokeDasharray: style ? "4 3" : null })),
        tip(points, (d) => `${d.name}\nσ${Math.round(d.x)} is ${percent(d.y)} of σ1`),
      ],
    }), kinds.map(([name, , color, style]) => [name, color, style]));
  }
}

// Runs with the same label share charts; a price and a probability never share an axis.
function labelled() {
  return d3.groups(runs, (run) => JSON.stringify(run.label)).map(([, group]) => ({ ...group[0].label, binary: !["real", "grade"].includes(group[0].label.kind), runs: group }));
}
