// Find an episode: search, filter, sort; an address of its own for each (#episode=condition/seed/policy).
"use strict";

const SHOWN = 200;  // rows of the list at once
const episodeAddress = (entry) => `#episode=${[entry.condition, entry.seed, entry.policy].map(encodeURIComponent).join("/")}`;

function addressed(entries, address) {
  return entries.find((entry) => episodeAddress(entry) === address);
}

// `entries` are in the page with all their turns; of the others in `listed`, the whole evaluation in its stored order, only figures are.
function episodeSearch(host, entries, listed, open) {
  const held = new Set(entries.map(episodeAddress));
  const others = listed.map((row, number) => ({ ...row, number, entry: row, held: false })).filter((row) => !held.has(episodeAddress(row)));
  const rows = [...entries.flatMap((entry) => entry.members.map((member) => ({
    entry, member, held: true, policy: entry.policy, condition: entry.condition, seed: entry.seed, stop: member.stop,
    reward: member.reward?.value, true_reward: member.metrics?.true_reward, components: member.reward?.components ?? {},
    text: [...member.turns.flatMap((turn) => [turn.observation, turn.action, turn.error ?? "", ...(turn.results ?? []).map(([, content]) => content)]), member.final ?? ""].join("\n").toLowerCase(),
  }))), ...others];
  const names = [...new Set(rows.flatMap((row) => Object.keys(row.components)))];
  const value = (row, figure) => (figure in row.components ? row.components[figure] : row[figure]);
  const within = (known) => (least.value === "" && most.value === "") || (known != null  // null >= 0 is true here
    && (least.value === "" || known >= Number(least.value)) && (most.value === "" || known <= Number(most.value)));
  const choice = (id, label, options) => {
    const select = html("select", { id, onchange: draw }, options.map(([key, name]) => html("option", { value: key }, name)));
    return [select, html("label", { for: id }, label, select)];
  };
  const figures = [["reward", "reward"], ["true_reward", "true reward"], ...names.map((name) => [name, name.replaceAll("_", " ")])];
  const [figure, figureLabel] = choice("find-figure", "Figure", figures);
  const [order, orderLabel] = choice("find-order", "Order", [["down", "highest first"], ["up", "lowest first"], ["stored", "as stored"]]);
  const [stop, stopLabel] = choice("find-stop", "Ended by", [["", "anything"], ...[...new Set(rows.map((row) => row.stop))].map((name) => [name, name.replaceAll("_", " ")])]);
  const [policy, policyLabel] = choice("find-policy", "Policy", [["", "all"], ...[...new Set(rows.map((row) => row.policy))].map((name) => [name, name])]);
  const text = html("input", { id: "find-text", type: "search", placeholder: "read or answered", oninput: draw });
  const least = html("input", { id: "find-least", type: "number", step: "any", oninput: draw });
  const most = html("input", { id: "find-most", type: "number", step: "any", oninput: draw });
  const count = html("p", { class: "soft small", role: "status" });
  const list = html("tbody");
  host.append(html("details", {}, html("summary", {}, `Find an episode among ${rows.length.toLocaleString("en")}`),
    html("div", { class: "controls" }, html("label", { for: "find-text" }, "Text", text), policyLabel, stopLabel, figureLabel,
      html("label", { for: "find-least" }, "At least", least), html("label", { for: "find-most" }, "At most", most), orderLabel),
    count, html("div", { class: "scroll results", tabindex: "0", role: "region", "aria-label": "Episodes that match" },
      html("table", { "data-name": "episodes" }, html("thead", {}, html("tr", {}, ["episode", "reward", "true reward", "ended by"].map((name) => html("th", { scope: "col" }, name)))), list))));
  function draw() {
    const words = text.value.toLowerCase().trim();
    const chosen = rows.filter((row) => (!words || row.text?.includes(words)) && (!stop.value || row.stop === stop.value) && (!policy.value || row.policy === policy.value) && within(value(row, figure.value)));
    const sign = { down: -1, up: 1, stored: 0 }[order.value];
    if (sign) chosen.sort((a, b) => sign * ((value(a, figure.value) ?? -Infinity) - (value(b, figure.value) ?? -Infinity)));
    count.textContent = `${chosen.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} episodes${chosen.length > SHOWN ? `, the first ${SHOWN} below` : ""}${others.length ? `; texts are searched in ${rows.length - others.length}` : ""}`;
    list.replaceChildren(...chosen.slice(0, SHOWN).map((row) => html("tr", {},
      html("th", { scope: "row" }, html("a", { href: episodeAddress(row.entry), onclick: () => open(row.entry, row.number) }, `${row.policy} · ${row.condition} · ${row.seed}${row.entry.members?.length > 1 ? ` · member ${row.member.member + 1}` : ""}`)),
      html("td", {}, write(row.reward, 3)), html("td", {}, write(row.true_reward, 2)), html("td", {}, row.stop.replaceAll("_", " ")))));
  }
  draw();
}
