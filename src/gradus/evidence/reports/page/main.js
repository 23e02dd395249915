// Put the charts where the page has places for them.
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);

const FIRST = 6;  // curves of a stage that stand open; the others are one click away

function drawCurves(drawn) {
  for (const part of document.querySelectorAll("[data-curves]")) drawPart(part, drawn[part.dataset.curves] ?? []);
}

function drawPart(part, curves) {
  const folded = part.nextElementSibling?.classList.contains("more") ? part.nextElementSibling : html("details", { class: "more" });
  const more = html("div", { class: part.className });
  part.replaceChildren();
  folded.replaceChildren(html("summary", {}, `${curves.length - FIRST} more curves`), more);
  if (curves.length > FIRST + 1) part.after(folded);
  for (const [place, curve] of curves.entries()) {
    const host = place < FIRST || curves.length === FIRST + 1 ? part : more;
    const figure = html("figure", { class: "panel" }, html("figcaption", {}, curve.title, html("small", {}, curve.note)));
    host.append(figure);
    lineChart(figure, { series: curve.series, marks: curve.marks, label: curve.title, xName: curve.x ?? "step", top: curve.top });
  }
}

drawCurves(data.curves);

const scores = document.getElementById("scores-chart");
if (scores && data.scores) scoresChart(scores, data.scores);

// What the axis holds: the untrained model lies far off, and a wide interval may, too; they would hide what was gained.
function near(rows) {
  const others = rows.filter((row) => row.name !== "base");
  const held = others.flatMap((row) => (row.strong ? [row.mean, row.low, row.high] : [row.mean])).filter(known);
  const room = 0.25 * (Math.max(...held) - Math.min(...held));
  const [low, high] = [Math.min(...held) - room, Math.max(...held) + room];
  return others.flatMap((row) => [row.mean, row.low, row.high]).map((value) => (known(value) ? clamp(value, low, high) : value));
}

function scoresChart(host, scores) {
  const measures = scores.measures;
  const pick = html("select", { id: "pick-measure", onchange: draw }, measures.map((measure) => html("option", { value: measure.key }, measure.name)));
  const grid = html("div", { class: "grid wide" });
  host.append(html("div", { class: "controls" }, html("label", { for: "pick-measure" }, "Figure", pick)), grid);
  function draw() {
    const chosen = measures.find((measure) => measure.key === pick.value) ?? measures[0];
    const rows = chosen.conditions.flatMap((condition) => condition.rows);
    const bounds = extent(rows.some((row) => row.strong) ? near(rows) : rows.flatMap((row) => [row.mean, row.low, row.high]));
    grid.replaceChildren(...chosen.conditions.map((condition) => {
      const figure = html("figure", { class: "panel" }, html("figcaption", {}, condition.name, html("small", {}, `${chosen.name}, ${condition.note}`)));
      return figure;
    }));
    chosen.conditions.forEach((condition, index) => dotChart(grid.children[index], { rows: condition.rows, range: bounds, label: `${chosen.name}, ${condition.name}` }));
  }
  draw();
}

const scatter = document.getElementById("audit-chart");
if (scatter && data.audit?.length) {
  const figure = html("figure", { class: "panel" }, html("figcaption", {}, `Reward and ${scatter.dataset.aim} of each policy`));
  scatter.append(figure);
  scatterChart(figure, { points: data.audit, xLabel: "reward", yLabel: scatter.dataset.aim });
}

const browser = document.getElementById("browser");
const finish = () => { explainTerms(data.terms ?? {}); addDownloads(); };
finish();

// The episodes are most of the page, so they are compressed.
async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return JSON.parse(await new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text());
}

if (browser) {
  unpacked(document.getElementById("packed").textContent).then(({ episodes, listed }) => {
    episodeBrowser(browser, episodes, listed);
    finish();
  }).catch((error) => browser.append(html("p", { class: "warn" }, `The episodes cannot be shown: ${error.message}. A browser of 2023 or later is needed.`)));
}
