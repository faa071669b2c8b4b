// How good the answers are: a block of charts and tables for each label.
function drawBlock(block) {
  const part = find(`template[data-block="${block.kind}"]`).content.cloneNode(true);
  const place = element("div");
  place.append(part);
  find('[data-part="blocks"]').append(place);
  find("[data-several-labels]", place).append(block.several ? block.name : "");
  find("[data-several-labels]", place).hidden = !block.several;
  drawLearning(find('[data-chart="learning"]', place), block);
  const shown = block.runs.filter((run) => run.curves?.calibration);
  // A chart is there where at least one run has what it shows.
  const charts = { calibration: drawCalibration, scores: drawScores, roc: drawRoc, "precision-recall": drawPrecision, lift: drawLift, "predicted-actual": drawPredicted, residuals: drawResiduals };
  for (const figure of place.querySelectorAll(".trio > figure")) {
    const name = figure.dataset.chart, key = name.replace("-", "_");
    const known = shown.filter((run) => Object.values(run.curves[key] || {}).some((values) => values.length));
    figure.hidden = !known.length;
    if (known.length) charts[name](figure, known, block);
  }
  drawTables(place, shown, block);
}

function drawLearning(place, block) {
  const drawn = block.runs.filter((run) => run.learning.averaged.length);
  place.hidden = !drawn.length;
  if (!drawn.length) return;
  const single = runs.length === 1;
  const words = { train: block.binary ? "training loss" : "training", raw: "validation, raw weights", averaged: "validation, averaged" };
  const series = drawn.flatMap((run) => [
    [words.train, run.learning.train, single ? "var(--muted)" : run.color, { strokeWidth: 1, strokeOpacity: single ? 0.8 : 0.35 }],
    [words.raw, run.learning.raw, single ? colors[1] : run.color, { strokeWidth: 1.25, strokeDasharray: "4 3" }],
    [words.averaged, run.learning.averaged, run.color, { strokeWidth: 2.25, marker: run.learning.averaged.length < 25 ? "dot" : null }],
  ].map(([name, pairs, stroke, style]) => ({ name, stroke, style, points: pairs.map(([x, y]) => ({ x, y, name, run: run.name })) })));
  const all = series.flatMap((line) => line.points);
  const values = all.map((point) => point.y);
  const high = Math.max(d3.quantile(values, 0.97), ...drawn.map((run) => d3.max(run.learning.averaged, (pair) => pair[1])));
  const shapes = [[words.averaged, single ? colors[0] : "var(--muted)"], [words.raw, single ? colors[1] : "var(--muted)", "dashed"], [words.train, "var(--muted)", "thin"]]
    .filter(([name]) => all.some((point) => point.name === name));
  draw(place, "Learning curves", (width) => ({
    height: 300, x: { label: "step", tickFormat: "~s", ticks: wholeTicks(all.map((point) => point.x), width) },
    y: { label: block.binary ? "log loss" : block.kind === "grade" ? "1 − NDCG@10" : `RMSE, ${block.name}`, grid: true, domain: [d3.min(values), high], nice: true, tickFormat: axisFormat(values) },
    marks: [
      Plot.ruleX(drawn, { x: (run) => run.learning.best_step, stroke: "var(--line)", strokeWidth: 1.5 }),
      ...series.map((line) => Plot.line(line.points, { x: "x", y: "y", stroke: line.stroke, clip: true, ...line.style })),
      tip(all.filter((point) => point.y <= high), (d) => `${single ? "" : d.run + "\n"}${d.name}\nstep ${d.x.toLocaleString("en")}: ${block.binary ? number(d.y, 5) : amount(d.y)}`),
    ],
  }), [...legendOf(drawn), ...shapes]);
}

const square = (width) => Math.min(width, 320);
const headOf = (shown, d) => (shown.length > 1 ? d.run + "\n" : "");
// Points of two lists of numbers of each run's curve.
const pointsOf = (shown, key, xs, ys) => shown.flatMap((run) => run.curves[key][ys].map((y, i) => ({ x: run.curves[key][xs][i], y, run: run.name, color: run.color })));

function drawCalibration(place, shown, block) {
  const points = shown.flatMap((run) => run.curves.calibration.predicted.map((x, i) => {
    const y = run.curves.calibration.observed[i], rows = run.curves.calibration.rows[i];
    const spread = block.binary ? 1.96 * Math.sqrt(Math.max(y * (1 - y), 1 / rows) / rows) : 0;
    return { x, y, rows, low: y - spread, high: y + spread, run: run.name, color: run.color };
  }));
  const values = points.flatMap((point) => [point.x, point.y]);
  const [low, high] = d3.extent(values);
  const domain = [block.binary ? 0 : low, high + 0.04 * (high - low)];
  const tickFormat = block.binary ? percent : axisFormat(values), exact = block.binary ? percent : amount;
  const [x, y] = block.binary ? ["predicted", "observed"] : [`mean predicted ${block.name}`, `mean actual ${block.name}`];
  draw(place, block.binary ? "Calibration" : "Mean predicted against mean actual", (width) => ({
    height: square(width), x: { label: x, domain, tickFormat, ticks: 5 }, y: { label: y, domain, tickFormat, ticks: 5, grid: true },
    marks: [
      diagonal(domain),
      shown.length < 3 ? Plot.ruleX(points, { x: "x", y1: "low", y2: "high", stroke: "color", strokeOpacity: 0.5, clip: true }) : null,
      Plot.line(points, { x: "x", y: "y", z: "run", stroke: "color", strokeOpacity: 0.5 }),
      Plot.dot(points, { x: "x", y: "y", r: 2.6, fill: "color" }),
      tip(points, (d) => `${headOf(shown, d)}predicted ${exact(d.x)}\n${block.binary ? "observed" : "actual"} ${exact(d.y)}\n${d.rows.toLocaleString("en")} rows`),
    ], color: { type: "identity" },
  }), legendOf(shown));
}

const logit = (p) => Math.log(p / (1 - p));
const probability = (x) => percent(1 / (1 + Math.exp(-x)));

function drawScores(place, shown, block) {
  const [back, front] = block.binary ? ["negative", "positive"] : ["labels", "answers"];
  const words = { negative: "negative", positive: "positive", labels: "actual", answers: "predicted" };
  const ticks = [0.001, 0.01, 0.05, 0.2, 0.5, 0.8, 0.95, 0.99, 0.999].map(logit);
  drawHistogram(place, shown, "scores", [back, front], words, {
    title: block.binary ? "Distribution of scores" : "Distribution of predictions", near: block.binary ? probability : amount,
    x: ([low, high]) => (block.binary
      ? { label: "predicted probability, on the scale of its log-odds", ticks: ticks.filter((x) => x >= low && x <= high), tickFormat: probability }
      : { label: block.name, ticks: 5, tickFormat: axisFormat([low, high]) }),
  });
}

function drawResiduals(place, shown, block) {
  drawHistogram(place, shown, "residuals", ["residuals"], { residuals: "rows" }, {
    title: "Distribution of residuals", near: amount, zero: true,
    x: (extent) => ({ label: `actual less predicted ${block.name}`, ticks: 5, tickFormat: axisFormat(extent) }),
  });
}

function drawHistogram(place, shown, key, series, words, { title, near, x, zero }) {
  const single = shown.length === 1, last = series.length - 1;
  const points = shown.flatMap((run) => series.flatMap((name, k) => run.curves[key][name].map((y, i) => ({
    x: (run.curves[key].edges[i] + run.curves[key].edges[i + 1]) / 2, y, name, run: run.name,
    color: single ? colors[k] : run.color,
  }))));
  const extent = d3.extent(points, (point) => point.x);
  const part = (name) => points.filter((point) => point.name === name);
  const keys = single ? series.map((name, k) => [words[name], colors[k], "block"]) : [...legendOf(shown), ...series.map((name, k) => [words[name], "var(--muted)", k < last ? "dashed" : ""])];
  draw(place, title, (width) => ({
    height: square(width), x: { labelAnchor: "center", ...x(extent) }, y: { label: "share of rows", grid: true, tickFormat: percent, ticks: 5 },
    marks: [
      ...series.map((name, k) => (single
        ? Plot.areaY(part(name), { x: "x", y: "y", fill: colors[k], fillOpacity: 0.42, curve: "step" })
        : Plot.line(part(name), { x: "x", y: "y", z: "run", stroke: "color", curve: "monotone-x", strokeDasharray: k < last ? "4 3" : null }))),
      Plot.ruleY([0], { stroke: "var(--line)" }),
      zero ? Plot.ruleX([0], { stroke: "var(--muted)", strokeDasharray: "2 3" }) : null,
      tip(points, (d) => `${headOf(shown, d)}${last ? words[d.name] + "\n" : ""}near ${near(d.x)}: ${percent(d.y)} of rows`),
    ], color: { type: "identity" },
  }), last || !single ? keys.filter(([name]) => last || name !== "rows") : []);
}

function drawLines(place, shown, points, title, { x, y, below, text }) {
  draw(place, title, (width) => ({
    height: square(width), x: { tickFormat: "~%", ticks: 5, domain: [0, 1], ...x }, y: { ticks: 5, grid: true, ...y },
    marks: [...below, Plot.line(points, { x: "x", y: "y", z: "run", stroke: "color", strokeWidth: 2 }), tip(points, (d) => headOf(shown, d) + text(d))],
    color: { type: "identity" },
  }), legendOf(shown));
}

function drawRoc(place, shown) {
  drawLines(place, shown, pointsOf(shown, "roc", "false", "true"), "ROC curve", {
    x: { label: "false positive rate" }, y: { label: "true positive rate", tickFormat: "~%", domain: [0, 1] }, below: [diagonal([0, 1])],
    text: (d) => `true ${percent(d.y)}\nfalse ${percent(d.x)}`,
  });
}

function drawPrecision(place, shown) {
  const random = shown.map((run) => run.curves.precision_recall.precision[d3.maxIndex(run.curves.precision_recall.recall)]);
  drawLines(place, shown, pointsOf(shown, "precision_recall", "recall", "precision"), "Precision by recall", {
    x: { label: "recall" }, y: { label: "precision", tickFormat: "~%", domain: [0, 1] },
    below: [Plot.ruleY(random, { stroke: "var(--muted)", strokeDasharray: "2 3" })],
    text: (d) => `precision ${percent(d.y)}\nrecall ${percent(d.x)}`,
  });
}

function drawLift(place, shown) {
  drawLines(place, shown, pointsOf(shown, "lift", "share", "lift"), "Lift by share of rows", {
    x: { label: "share of rows, highest scores first" }, y: { label: "lift", zero: true }, below: [Plot.ruleY([1], { stroke: "var(--muted)", strokeDasharray: "2 3" })],
    text: (d) => `the highest ${percent(d.x)}\n${number(d.y, 2)} times as many`,
  });
}

function drawPredicted(place, shown, block) {
  const points = pointsOf(shown, "predicted_actual", "predicted", "actual");
  const values = points.flatMap((point) => [point.x, point.y]), domain = d3.extent(values), tickFormat = axisFormat(values);
  draw(place, "Predicted against actual", (width) => ({
    height: square(width), x: { label: `predicted ${block.name}`, domain, nice: true, tickFormat, ticks: 5 }, y: { label: `actual ${block.name}`, domain, nice: true, tickFormat, ticks: 5, grid: true },
    marks: [
      Plot.dot(points, { x: "x", y: "y", r: 1.8, fill: "color", fillOpacity: points.length > 400 ? 0.35 : 0.6 }), diagonal(domain),
      tip(points, (d) => `${headOf(shown, d)}predicted ${amount(d.x)}\nactual ${amount(d.y)}`),
    ], color: { type: "identity" },
  }), legendOf(shown));
}

function drawTables(place, shown, block) {
  const box = control("run", place), part = (name) => find(`[data-part="${name}"]`, place);
  fill(box, shown.map((run, i) => [i, run.name]));
  const column = control("column", place);
  const show = () => {
    const run = shown[box.value || 0];
    const columns = Object.keys(run?.curves.groups || {});
    const few = columns.find((name) => run.curves.groups[name].every((group) => !group.others));
    const chosen = [column.value, content.column, few, columns[0]].find((name) => columns.includes(name));
    fill(column, columns.map((name) => [name, name]), chosen);
    part("groups").hidden = !columns.length;
    if (columns.length) find('[data-table="groups"]', place).replaceChildren(groupTable(run.curves.groups[chosen], block));
    const thresholds = run?.curves.thresholds || [];
    if (!part("thresholds")) return;
    part("thresholds").hidden = !thresholds.length;
    if (thresholds.length) find('[data-table="thresholds"]', place).replaceChildren(thresholdTable(thresholds));
  };
  box.onchange = column.onchange = show;
  show();
  for (const some of place.querySelectorAll("[data-several]")) some.hidden = shown.length < 2;
}

function groupTable(groups, block) {
  const mean = block.binary ? tenths : amount;
  const headers = ["value", "rows", ...(block.binary ? ["positive", "predicted", "log loss", "AUC", "ECE"] : [`mean ${block.name}`, "mean prediction", "RMSE", "R²"])];
  return table(headers, groups.map((group) => [
    group.value, group.rows.toLocaleString("en"), mean(group.mean_label), mean(group.mean_answer),
    ...(block.binary ? [number(group.logloss), number(group.auc), number(group.ece)] : [amount(group.rmse), number(group.r2)]),
  ]));
}

function thresholdTable(thresholds) {
  const best = d3.max(thresholds, (one) => one.f1), share = (value) => (value == null ? "–" : tenths(value));
  return table(["threshold", "rows called positive", "precision", "recall", "F1"], thresholds.map((one) => [
    percent(one.threshold), share(one.share), share(one.precision), share(one.recall),
    one.f1 === best ? element("b", {}, number(one.f1, 3)) : number(one.f1, 3),
  ]), []);
}

const blocks = labelled();
for (const block of blocks) drawBlock({ ...block, several: blocks.length > 1 });
drawSpectra();
