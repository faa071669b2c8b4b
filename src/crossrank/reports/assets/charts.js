"use strict";
const content = JSON.parse(document.getElementById("content").textContent);
const runs = content.runs;
const colors = ["--a1", "--a2", "--a3", "--a4", "--a5", "--a6"].map((name) => `var(${name})`);
const colorOf = (i) => colors[i % colors.length];
const find = (selector) => document.querySelector(selector);
const control = (name) => find(`[data-control="${name}"]`);
const number = (value, digits = 4) => (value == null ? "–" : value.toFixed(digits));
const percent = d3.format(".3~%");
const tenths = d3.format(".1%");
const decades = [1, 0.1, 0.01, 0.001, 1e-4];

// Text from the data goes in as text, never as markup.
function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function table(headers, rows, words = [0]) {
  const cell = (tag, value, i) => element(tag, words.includes(i) ? {} : { class: "n" }, value);
  const head = element("thead", {}, element("tr", {}, ...headers.map((name, i) => cell("th", name, i))));
  const body = element("tbody", {}, ...rows.map((row) => element("tr", {}, ...row.map((value, i) => cell("td", value, i)))));
  return element("table", {}, head, body);
}

function fill(select, options, chosen) {
  select.replaceChildren(...options.map(([value, label]) => element("option", { value }, label)));
  if (chosen != null) select.value = chosen;
}

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
    canvas.replaceChildren(Plot.plot({
      width, marginBottom: 40, insetRight: 5, ariaLabel: label, style: { fontFamily: "inherit", fontSize: "12px", background: "none", color: "var(--ink)" },
      ...build(width),
    }));
  };
  new ResizeObserver(render).observe(canvas);
  render();
}

const tip = (points, title) => Plot.tip(points, Plot.pointer({ x: "x", y: "y", title, fontSize: 12, textPadding: 6 }));
const runLegend = () => runs.map((run, i) => [run.name, colorOf(i)]);

function drawLearning() {
  const place = find('[data-chart="learning"]');
  const drawn = runs.map((run, i) => [run, i]).filter(([run]) => run.learning.averaged.length);
  place.hidden = !drawn.length;
  if (!drawn.length) return;
  const single = runs.length === 1;
  const series = drawn.flatMap(([run, i]) => [
    ["training loss", run.learning.train, single ? "var(--muted)" : colorOf(i), { strokeWidth: 1, strokeOpacity: single ? 0.8 : 0.35 }],
    ["validation, raw weights", run.learning.raw, single ? colors[1] : colorOf(i), { strokeWidth: 1.25, strokeDasharray: "4 3" }],
    ["validation, averaged", run.learning.averaged, colorOf(i), { strokeWidth: 2.25, marker: run.learning.averaged.length < 25 ? "dot" : null }],
  ].map(([name, pairs, stroke, style]) => ({ stroke, style, points: pairs.map(([x, y]) => ({ x, y, name, run: run.name })) })));
  const all = series.flatMap((line) => line.points);
  const values = all.map((point) => point.y);
  const high = Math.max(d3.quantile(values, 0.97), ...drawn.map(([run]) => d3.max(run.learning.averaged, (pair) => pair[1])));
  const label = drawn[0][0].learning.criterion === "rmse" ? "loss, RMSE" : "log loss";
  const shapes = [["validation, averaged", single ? colors[0] : "var(--muted)"],
    ["validation, raw weights", single ? colors[1] : "var(--muted)", "dashed"], ["training loss", "var(--muted)", "thin"]];
  draw(place, "Learning curves", () => ({
    height: 300, marginLeft: 48, x: { label: "step", tickFormat: "~s" }, y: { label, grid: true, domain: [d3.min(values), high], nice: true },
    marks: [
      Plot.ruleX(drawn, { x: ([run]) => run.learning.best_step, stroke: "var(--line)", strokeWidth: 1.5 }),
      ...series.map((line) => Plot.line(line.points, { x: "x", y: "y", stroke: line.stroke, clip: true, ...line.style })),
      tip(all.filter((point) => point.y <= high), (d) => `${single ? "" : d.run + "\n"}${d.name}\nstep ${d.x.toLocaleString("en")}: ${number(d.y, 5)}`),
    ],
  }), single ? shapes : [...runLegend(), ...shapes]);
}

const withCurves = () => runs.map((run, i) => ({ name: run.name, color: colorOf(i), ...run.curves })).filter((run) => run.calibration);

function drawCalibration(shown) {
  const points = shown.flatMap((run) => run.calibration.predicted.map((x, i) => {
    const y = run.calibration.observed[i], rows = run.calibration.rows[i];
    const spread = run.kind === "binary" ? 1.96 * Math.sqrt(Math.max(y * (1 - y), 1 / rows) / rows) : 0;
    return { x, y, rows, low: y - spread, high: y + spread, run: run.name, color: run.color };
  }));
  const binary = shown[0].kind === "binary";
  const [low, high] = d3.extent(points.flatMap((point) => [point.x, point.y]));
  const domain = [binary ? 0 : low, high + 0.04 * (high - low)];
  const format = binary ? percent : undefined;
  draw(find('[data-chart="calibration"]'), "Calibration", (width) => ({
    height: Math.min(width, 320), marginLeft: 44, x: { label: "predicted", domain, tickFormat: format, ticks: 5 },
    y: { label: "observed", domain, tickFormat: format, ticks: 5, grid: true },
    marks: [
      Plot.line([[domain[0], domain[0]], [domain[1], domain[1]]], { stroke: "var(--muted)", strokeDasharray: "2 3" }),
      shown.length < 3 ? Plot.ruleX(points, { x: "x", y1: "low", y2: "high", stroke: "color", strokeOpacity: 0.5, clip: true }) : null,
      Plot.line(points, { x: "x", y: "y", z: "run", stroke: "color", strokeOpacity: 0.5 }),
      Plot.dot(points, { x: "x", y: "y", r: 2.6, fill: "color" }),
      tip(points, (d) => `${shown.length > 1 ? d.run + "\n" : ""}predicted ${binary ? percent(d.x) : number(d.x)}\nobserved ${binary ? percent(d.y) : number(d.y)}\n${d.rows.toLocaleString("en")} rows`),
    ], color: { type: "identity" },
  }), shown.length > 1 ? runLegend() : []);
}

function drawScores(shown) {
  const binary = shown[0].kind === "binary";
  const [back, front] = binary ? ["negative", "positive"] : ["labels", "answers"];
  const single = shown.length === 1;
  const points = shown.flatMap((run) => [back, front].flatMap((name) => run.scores[name].map((y, i) => ({
    x: (run.scores.edges[i] + run.scores.edges[i + 1]) / 2, y, name, run: run.name,
    color: single ? (name === front ? colors[1] : colors[0]) : run.color,
  }))));
  const logit = (p) => Math.log(p / (1 - p));
  const [low, high] = d3.extent(points, (point) => point.x);
  const ticks = [0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999].map(logit).filter((x) => x >= low && x <= high);
  const probability = (x) => percent(1 / (1 + Math.exp(-x)));
  const part = (name) => points.filter((point) => point.name === name);
  draw(find('[data-chart="scores"]'), "Distribution of scores", (width) => ({
    height: Math.min(width, 320), marginLeft: 44,
    x: { label: binary ? "predicted probability, on the scale of its log-odds" : "value", labelAnchor: "center", ...(binary ? { ticks, tickFormat: probability } : {}) },
    y: { label: "share of rows", grid: true, tickFormat: percent, ticks: 5 },
    marks: [
      ...[back, front].map((name) => single
        ? Plot.areaY(part(name), { x: "x", y: "y", fill: part(name)[0].color, fillOpacity: 0.42, curve: "step" })
        : Plot.line(part(name), { x: "x", y: "y", z: "run", stroke: "color", curve: "monotone-x", strokeDasharray: name === back ? "4 3" : null })),
      Plot.ruleY([0], { stroke: "var(--line)" }),
      tip(points, (d) => `${single ? "" : d.run + "\n"}${d.name} rows\n${binary ? "near " + probability(d.x) : number(d.x)}: ${percent(d.y)}`),
    ], color: { type: "identity" },
  }), single ? [[back, colors[0], "block"], [front, colors[1], "block"]] : [...runLegend(), [front, "var(--muted)"], [back, "var(--muted)", "dashed"]]);
}

function drawRoc(shown) {
  const place = find('[data-chart="roc"]');
  const known = shown.filter((run) => run.roc && run.roc.true.length);
  place.hidden = !known.length;
  if (!known.length) return;
  const points = known.flatMap((run) => run.roc.true.map((y, i) => ({ x: run.roc.false[i], y, run: run.name, color: run.color })));
  draw(place, "ROC curve", (width) => ({
    height: Math.min(width, 320), marginLeft: 44, x: { label: "false positive rate", tickFormat: "~%", ticks: 5 },
    y: { label: "true positive rate", tickFormat: "~%", ticks: 5, grid: true },
    marks: [
      Plot.line([[0, 0], [1, 1]], { stroke: "var(--muted)", strokeDasharray: "2 3" }),
      Plot.line(points, { x: "x", y: "y", z: "run", stroke: "color", strokeWidth: 2 }),
      tip(points, (d) => `${known.length > 1 ? d.run + "\n" : ""}true ${percent(d.y)}\nfalse ${percent(d.x)}`),
    ], color: { type: "identity" },
  }), known.length > 1 ? runLegend() : []);
}

function drawGroups(shown) {
  const place = find('[data-part="groups"]');
  const columns = [...new Set(shown.flatMap((run) => Object.keys(run.groups)))];
  place.hidden = !columns.length;
  if (!columns.length) return;
  const column = control("column"), which = control("group-run");
  const few = columns.find((name) => shown[0].groups[name]?.every((group) => !group.others));
  fill(column, columns.map((name) => [name, name]), content.column || few || columns[0]);
  fill(which, shown.map((run, i) => [i, run.name]));
  const show = () => {
    const run = shown[which.value || 0];
    const binary = run.kind === "binary";
    const share = (value) => (binary ? tenths(value) : number(value));
    const headers = ["value", "rows", binary ? "positive" : "mean label", binary ? "predicted" : "mean answer", ...(binary ? ["log loss", "AUC", "ECE"] : ["RMSE", "R²"])];
    const rows = (run.groups[column.value] || []).map((group) => [
      group.value, group.rows.toLocaleString("en"), share(group.mean_label), share(group.mean_answer),
      ...(binary ? [group.logloss, group.auc, group.ece] : [group.rmse, group.r2]).map((value) => number(value)),
    ]);
    find('[data-table="groups"]').replaceChildren(table(headers, rows));
  };
  column.onchange = which.onchange = show;
  show();
}

function drawSpectra() {
  const place = find('[data-chart="spectra"]');
  const layers = runs.flatMap((run) => run.spectra.map((layer) => ({ ...layer, run: run.name })));
  find("#spectra").hidden = !layers.length;
  for (const layer of layers) {
    const kinds = [["initial", layer.initial, "var(--muted)", "dashed"], ["learned", layer.values, colors[0]], ["as used", layer.used, colors[1]]]
      .filter(([, values]) => values.length);
    const points = kinds.flatMap(([name, values, color]) => values.map((value, i) => ({
      x: 1 + (i * (layer.width - 1)) / Math.max(values.length - 1, 1), y: value / values[0], name, color,
    })).filter((point) => point.y >= decades[4]));
    const lowest = d3.min(points, (point) => point.y);
    const figure = element("figure", {}, element("figcaption", {}, element("b", {}, (runs.length > 1 ? `${layer.run}, ` : "") + layer.label)));
    place.append(figure);
    draw(figure, `Singular values of ${layer.label}`, () => ({
      height: 260, marginLeft: 48, x: { label: "k" }, y: { type: "log", label: "σₖ / σ₁", grid: true, ticks: decades.filter((tick) => tick >= lowest), tickFormat: "~g" },
      marks: [
        ...kinds.map(([name, , color, style]) => Plot.line(points.filter((point) => point.name === name), { x: "x", y: "y", stroke: color, strokeWidth: style ? 1.25 : 2, strokeDasharray: style ? "4 3" : null })),
        tip(points, (d) => `${d.name}\nσ${Math.round(d.x)} is ${percent(d.y)} of σ1`),
      ],
    }), kinds.map(([name, , color, style]) => [name, color, style]));
  }
}

drawLearning();
const shown = withCurves();
if (shown.length) {
  drawCalibration(shown);
  drawScores(shown);
  drawRoc(shown);
  drawGroups(shown);
} else {
  for (const place of document.querySelectorAll(".trio, [data-part=groups]")) place.hidden = true;
}
drawSpectra();
for (const label of document.querySelectorAll("[data-several]")) label.hidden = runs.length < 2;
