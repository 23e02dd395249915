// Each chart as SVG or PNG, each table as CSV, and an explanation of each term on hover, tap or focus.
"use strict";

const DRAWN = ["fill", "stroke", "stroke-width", "stroke-dasharray", "stroke-linecap", "stroke-linejoin", "opacity", "font-size", "font-weight", "font-family"];
const MARGIN = 12;

function save(name, blob) {
  const link = html("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 1000);
}

const fileName = (text) => text.trim().toLowerCase().replace(/[^a-z0-9]+/g, "-").replace(/^-|-$/g, "").slice(0, 60) || "figure";

// A copy of an svg element that needs no style sheet.
function styled(chart) {
  const copy = chart.cloneNode(true);
  const originals = [chart, ...chart.querySelectorAll("*")];
  [copy, ...copy.querySelectorAll("*")].forEach((node, index) => {
    const style = getComputedStyle(originals[index]);
    for (const key of DRAWN) node.style.setProperty(key, style.getPropertyValue(key));
  });
  copy.style.overflow = "visible";
  return copy;
}

// The lines of a text as the page broke it: each with the place where it stands.
function* linesOf(node) {
  const range = document.createRange();
  let line = null;
  for (let at = 0; at < node.length; at += 1) {
    range.setStart(node, at);
    range.setEnd(node, at + 1);
    const box = range.getClientRects()[0];
    if (!box?.width) continue;
    if (line && Math.abs(box.top - line.box.top) < 2) line.text += node.data[at];
    else {
      if (line) yield line;
      line = { box, text: node.data[at] };
    }
  }
  if (line) yield line;
}

// A figure as a file of its own: its title, its legend and its chart, each where the page has it.
function drawing(figure) {
  const corner = figure.getBoundingClientRect();
  const inside = (each) => !each.closest(".saves") && !each.parentElement.closest("svg");
  const [width, height] = [corner.width + 2 * MARGIN, corner.height + 2 * MARGIN];
  const whole = svg("svg", { width, height, viewBox: `0 0 ${width} ${height}` }, svg("rect", { width: "100%", height: "100%", fill: getComputedStyle(document.body).backgroundColor }));
  for (const chart of [...figure.querySelectorAll("svg")].filter(inside)) {
    const box = chart.getBoundingClientRect();
    const copy = styled(chart);
    copy.setAttribute("x", box.left - corner.left + MARGIN);
    copy.setAttribute("y", box.top - corner.top + MARGIN);
    whole.append(copy);
  }
  const texts = document.createTreeWalker(figure, NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (parent.closest("svg, .saves")) continue;
    const style = getComputedStyle(parent);
    for (const { box, text } of linesOf(texts.currentNode)) {
      whole.append(svg("text", {
        x: box.left - corner.left + MARGIN, y: box.bottom - corner.top + MARGIN - 0.24 * box.height, fill: style.color,
        "font-size": style.fontSize, "font-weight": style.fontWeight, "font-family": style.fontFamily,
      }, text.trimEnd()));
    }
  }
  return whole;
}

const written = (figure) => new XMLSerializer().serializeToString(drawing(figure));

function savePng(name, figure) {
  const drawn = drawing(figure);
  const source = new XMLSerializer().serializeToString(drawn);
  const picture = new Image();
  picture.onload = () => {
    const canvas = html("canvas", { width: drawn.getAttribute("width") * 2, height: drawn.getAttribute("height") * 2 });
    canvas.getContext("2d").drawImage(picture, 0, 0, canvas.width, canvas.height);
    canvas.toBlob((blob) => save(`${name}.png`, blob));
  };
  picture.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(source)}`;
}

const quoted = (text) => (/[",\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text);

// Numbers as programs read them: with a hyphen for a minus, nothing between thousands, and an empty cell for none.
const NUMBER = /^[+−-]?[\d,]*\.?\d+(e-?\d+)?$/;
function plain(text) {
  if (text === "–") return "";
  return NUMBER.test(text) ? text.replace("−", "-").replace(/^\+/, "").replaceAll(",", "") : text;
}

// A cell with an interval below its value has columns for both ends.
function csv(table) {
  const rows = [...table.rows].map((row) => [...row.cells].map((each) => {
    const small = each.querySelector("small")?.textContent.trim() ?? "";
    const whole = each.textContent.trim();
    const text = whole.slice(0, whole.length - small.length).trim();
    const ends = small.match(/^(\S+) to (\S+)$/)?.slice(1).map(plain);
    return { text: small && !ends ? `${text} (${small})` : plain(text), ends };
  }));
  const wide = rows[0].map((_, column) => rows.some((row) => row[column]?.ends));
  const told = (cell, header, column) => [cell.text, ...(wide[column] ? (cell.ends ?? (header ? [`${cell.text} low`, `${cell.text} high`] : ["", ""])) : [])];
  return rows.map((row, place) => row.flatMap((cell, column) => told(cell, place === 0, column)).map(quoted).join(",")).join("\n");
}

function addDownloads() {
  for (const caption of document.querySelectorAll("figure.panel > figcaption")) {
    if (caption.querySelector(".saves")) continue;
    const figure = caption.parentElement;
    if (!figure.querySelector(".stage")) continue;
    const name = fileName(caption.firstChild.textContent);
    const button = (label, onclick) => html("button", { type: "button", class: "save", "aria-label": `Save ${caption.firstChild.textContent} as ${label}`, onclick }, label);
    caption.append(html("span", { class: "saves" }, button("SVG", () => save(`${name}.svg`, new Blob([written(figure)], { type: "image/svg+xml" }))), button("PNG", () => savePng(name, figure))));
  }
  for (const region of document.querySelectorAll(".scroll")) {
    const table = region.querySelector("table");
    if (!table || region.nextElementSibling?.classList.contains("save")) continue;
    const name = region.getAttribute("aria-label") ?? "table";
    region.after(html("button", { type: "button", class: "save", "aria-label": `Save ${name} as CSV`, onclick: () => save(`${fileName(name)}.csv`, new Blob([csv(table)], { type: "text/csv" })) }, "CSV"));
  }
}

// A heading whose text is a known term tells what it means.
function explainTerms(terms) {
  for (const node of document.querySelectorAll("main th, figcaption, .legend .entry, summary")) {
    const first = node.firstChild;
    const text = first?.nodeType === Node.TEXT_NODE ? first.textContent.trim() : "";
    const told = [text, text.toLowerCase()].filter((name) => Object.hasOwn(terms, name)).map((name) => terms[name])[0];
    if (!told) continue;
    first.replaceWith(html("span", { class: "term", tabindex: "0", title: told, "aria-label": `${text}: ${told}`, "data-told": told }, text));
  }
}
