// What single features do: mean answers by value, a chart for each feature, all on one scale of answers.
function drawDependence() {
  const place = find('[data-chart="dependence"]');
  find('[data-part="dependence"]').hidden = !runs.some((run) => run.dependence.length);
  for (const block of blocks) {
    const names = [...new Set(block.runs.flatMap((run) => run.dependence.map((one) => one.feature)))];
    const means = block.runs.flatMap((run) => run.dependence.flatMap((one) => one.points.map((point) => point.mean)));
    for (const name of names) {
      const known = block.runs.map((run) => ({ name: run.name, color: run.color, ...run.dependence.find((one) => one.feature === name) })).filter((run) => run.points);
      const title = blocks.length > 1 ? `${name}, by mean ${block.name}` : name;
      const figure = element("figure", {}, element("figcaption", {}, element("b", {}, title)));
      place.append(figure);
      drawFeature(figure, name, known, block, means);
    }
  }
}

function drawFeature(figure, name, known, block, means) {
  const points = known.flatMap((run) => run.points.map((point) => ({ ...point, run: run.name, color: run.color, r: 2 + 9 * Math.sqrt(point.share || 0) })));
  const [low, high] = d3.extent(means), room = 0.04 * (high - low) || 0.01;
  const exact = block.binary ? percent : amount;
  const answers = { label: block.binary ? "mean probability" : block.kind === "grade" ? "mean score" : `mean predicted ${block.name}`, domain: [low - room, high + room], grid: true, ticks: 5, tickFormat: block.binary ? percent : axisFormat(means) };
  const text = (d) => `${headOf(known, d)}${d.value}: ${exact(d.mean)}\n${percent(d.share)} of rows`;
  const shared = { fill: "color", fillOpacity: 0.75, r: "r" }, scales = { color: { type: "identity" }, r: { type: "identity" } };
  const numeric = known.every((run) => run.kind === "numeric");
  if (!numeric) {
    const texts = [...new Set(points.map((point) => String(point.value)))], short = shorten(texts, 20);
    const apart = new Set(short).size === texts.length ? short : texts;
    for (const point of points) point.value = apart[texts.indexOf(String(point.value))];
  }
  const [x, y] = numeric ? ["value", "mean"] : ["mean", "value"];
  const pointer = Plot.tip(points, Plot.pointer({ x, y, title: text, fontSize: 12, textPadding: 6 }));
  const values = [...new Set(points.map((point) => point.value))];
  draw(figure, `Partial dependence on ${name}`, () => (numeric
    ? { ...scales, height: 240, x: { label: shorten([name], 30)[0], ticks: 5, tickFormat: axisFormat(values) }, y: answers, marks: [Plot.line(points, { x, y, z: "run", stroke: "color", strokeWidth: 1.5 }), Plot.dot(points, { x, y, ...shared }), pointer] }
    : { ...scales, height: Math.max(120, 60 + 22 * values.length), x: answers, y: { label: null, type: "point", domain: values, grid: true }, marks: [Plot.dot(points, { x, y, ...shared }), pointer] }
  ), legendOf(known));
}

drawDependence();
