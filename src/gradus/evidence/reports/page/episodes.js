// The browser of episodes: pick a condition, a person and a policy; walk through the turns; compare.
"use strict";

// Several panels look at the same turn; each says how to show it and is told when it moves.
function turnLink(count) {
  let turn = 0;
  const listeners = [];
  return {
    count,
    get: () => turn,
    on: (listener) => listeners.push(listener),
    set(index) {
      turn = clamp(index, 0, Math.max(0, count - 1));
      for (const listener of listeners) listener(turn);
    },
  };
}

// A label has one color in all episodes: title of the strip -> its labels in a fixed order.
const kindsOf = Object.create(null);

function learnKinds(entries) {
  for (const entry of entries) {
    for (const member of entry.members) {
      for (const panel of member.view?.panels ?? []) {
        if (panel.kind === "strip") kindsOf[panel.title] = [...new Set([...(kindsOf[panel.title] ?? []), ...(panel.labels ?? [])])].sort();
      }
    }
  }
}

// What GRPO changed on each task that both students are stored of, the largest gain first.
function studentChanges(entries) {
  const value = (entry) => entry.members.length === 1 ? entry.members[0].reward?.value : null;
  return entries.filter((entry) => entry.policy === "grpo" && known(value(entry))).flatMap((after) => {
    const before = ["distill", "sft", "base"].map((name) => entries.find((each) => each.policy === name && each.condition === after.condition && each.seed === after.seed && known(value(each)))).find(Boolean);
    return before ? [{ after, before, change: value(after) - value(before) }] : [];
  }).sort((a, b) => b.change - a.change);
}

function episodeBrowser(host, entries, listed) {
  const graderName = host.dataset.grader;
  learnKinds(entries);
  const state = { condition: null, seed: null, policy: null, beside: "" };
  const unique = (values) => [...new Set(values)];
  const selects = {};
  const controls = html("div", { class: "controls" });
  const view = html("div", { class: "columns" });
  for (const [key, label] of [["condition", "Condition"], ["seed", "Seed"], ["policy", "Policy"], ["beside", "Beside it"]]) {
    selects[key] = html("select", { id: `pick-${key}`, onchange: () => { state[key] = selects[key].value; refresh(); } });
    controls.append(html("label", { for: `pick-${key}` }, label, selects[key]));
  }
  const address = html("p", { class: "small", role: "status" });
  host.append(html("div", { id: "find" }), controls, address, view);
  const open = (entry) => { Object.assign(state, { condition: entry.condition, seed: String(entry.seed), policy: entry.policy, beside: "" }); refresh(); };
  const elsewhere = (number) => {
    view.replaceChildren();  // what it showed is not what was asked for
    if (!host.dataset.run) return address.replaceChildren("The turns of this episode are not in this file. ", html("code", {}, "gradus eval --out FILE"), " stores them all.");
    return address.replaceChildren("The turns of this episode are not in this file. See them with ", html("code", {}, `gradus show ${host.dataset.shown}/eval/episodes.jsonl.gz -k ${number}`), ".");
  };
  const visit = (row, number) => (addressed(entries, episodeAddress(row)) ? open(row) : elsewhere(number));
  const goTo = (hash) => {
    const row = addressed(entries, hash) ?? addressed(listed, hash);
    if (row) visit(row, listed.indexOf(row));
    else if (hash.startsWith("#episode=")) {
      view.replaceChildren();
      address.replaceChildren(`The evaluation has no episode ${decodeURIComponent(hash.slice(9))}.`);
    }
    if (hash.startsWith("#episode=")) host.scrollIntoView();
    return row;
  };
  addEventListener("hashchange", () => goTo(location.hash));

  const fill = (key, options, empty = null) => {
    if (!options.includes(state[key])) state[key] = empty !== null ? empty : options[0];
    const all = empty !== null ? [[empty, "nothing"], ...options.map((name) => [name, name])] : options.map((name) => [name, name]);
    selects[key].replaceChildren(...all.map(([value, name]) => html("option", { value, selected: value === state[key] }, name)));
    selects[key].value = state[key];
  };
  function refresh() {
    const conditions = unique(entries.map((entry) => entry.condition));
    // Begin where there is somebody to compare with.
    state.condition ??= conditions.find((name) => unique(entries.filter((entry) => entry.condition === name).map((entry) => entry.policy)).length > 1) ?? conditions[0];
    fill("condition", conditions);
    const here = entries.filter((entry) => entry.condition === state.condition);
    fill("seed", unique(here.map((entry) => String(entry.seed))));
    const same = here.filter((entry) => String(entry.seed) === state.seed);
    const policies = unique(same.map((entry) => entry.policy));
    if (state.policy === null) state.policy = policies.find((name) => name === "grpo") ?? policies[policies.length - 1];
    fill("policy", policies);
    fill("beside", policies.filter((name) => name !== state.policy), "");
    const chosen = [state.policy, state.beside].filter(Boolean).map((name) => same.find((entry) => entry.policy === name));
    const link = turnLink(Math.max(1, ...chosen.flatMap((entry) => entry.members.map((member) => member.turns.length))));
    view.classList.toggle("two", chosen.length > 1);
    view.replaceChildren(...(link.count > 1 ? [walker(link)] : []), ...chosen.map((entry) => column(entry, link, graderName)));
    link.set(0);
    if (chosen[0]) address.replaceChildren(html("a", { href: episodeAddress(chosen[0]) }, "Link to this episode"));
    addDownloads();
  }
  const changes = studentChanges(entries);
  if (changes.length) {
    const { after, before } = changes[0];
    Object.assign(state, { condition: after.condition, seed: String(after.seed), policy: after.policy, beside: before.policy });
    const worst = changes[changes.length - 1];
    const loss = worst.change < 0 ? [" Its largest loss is ", html("a", { href: episodeAddress(worst.after) }, "here"), "."] : [];
    document.getElementById("gain")?.replaceChildren("The first one is GRPO's largest gain of those in this file, beside the student before it.", ...loss);
  }
  refresh();
  episodeSearch(host.querySelector("#find"), entries, listed, visit);
  goTo(location.hash);
}

function walker(link) {
  const said = html("output", { for: "pick-turn" });
  const range = html("input", { type: "range", id: "pick-turn", min: 0, max: link.count - 1, value: 0, "aria-label": "Turn", oninput: () => link.set(Number(range.value)) });
  link.on((turn) => { range.value = turn; said.textContent = `turn ${turn + 1} of ${link.count}`; });
  return html("div", { class: "walker" },
    html("button", { type: "button", "aria-label": "Previous turn", onclick: () => link.set(link.get() - 1) }, "◀"),
    range,
    html("button", { type: "button", "aria-label": "Next turn", onclick: () => link.set(link.get() + 1) }, "▶"), said);
}

function column(entry, link, graderName) {
  const box = html("section", { class: "episode", "aria-label": `${entry.policy}, seed ${entry.seed}` });
  const body = html("div");
  let member = 0;
  const draw = () => body.replaceChildren(...episode(entry, entry.members[member], link, graderName));
  box.append(html("h3", {}, entry.policy));
  if (entry.members.length > 1) {
    box.append(group(entry, link, (index) => { member = index; draw(); link.set(link.get()); }));
  }
  draw();
  box.append(body);
  return box;
}

// Members of a group met the same task and the same noise: what differs is what the policy did.
function group(entry, link, choose) {
  const cards = entry.members.map((member, index) => {
    const strip = (member.view?.panels ?? []).find((panel) => panel.kind === "strip" && panel.labels.length === member.turns.length);
    const words = html("span", { class: "answer" });
    const now = html("span", { class: "soft" });
    const card = html("button", { type: "button", class: "card", "aria-pressed": index === 0 ? "true" : "false", onclick: () => {
      cards.forEach((other) => other.setAttribute("aria-pressed", other === card ? "true" : "false"));
      choose(index);
    } },
    html("span", { class: "line" }, html("b", {}, `member ${member.member + 1}`), html("span", {}, `reward ${write(member.reward?.value, 3)}`)),
    words, now);
    if (strip) stripChart(card, { labels: strip.labels, link: { ...link, set: () => {} }, label: strip.title, kinds: kindsOf[strip.title], legend: false });
    link.on((turn) => {
      const at = member.turns[turn];
      words.textContent = at ? lastLine(at.action) : `ended: ${member.stop}`;
      const advantage = member.advantages?.[turn];
      now.textContent = at ? [known(at.env_reward) ? `reward ${write(at.env_reward, 2, true)}` : null, known(advantage) ? `advantage ${write(advantage, 2, true)}` : null].filter(Boolean).join(" · ") : "";
    });
    return card;
  });
  return html("div", {}, html("p", { class: "soft small" }, `${entry.members.length} members of one group: same task, same noise.`), html("div", { class: "cards" }, cards));
}

// A text that may scroll can be reached with the keyboard.
const long = (text, label) => html("pre", text.length > 500 || text.split("\n").length > 12 ? { tabindex: "0", role: "region", "aria-label": label } : {}, text);

const lastLine = (text) => text.trim().split("\n").pop() || "(nothing)";

function episode(entry, member, link, graderName) {
  const parts = [];
  const reward = member.reward;
  const figures = [["reward", reward?.value], ["return", member.return], ...Object.entries(member.metrics ?? {})].filter(([name, value]) => known(value) && !(name === "true_reward" && known(member.return)));
  const listed = (some) => html("p", { class: "figures" }, some.map(([name, value]) => html("span", {}, `${name.replaceAll("_", " ")} `, html("b", {}, write(value, 3)))));
  parts.push(listed(figures.slice(0, 8)));
  if (figures.length > 8) parts.push(html("details", {}, html("summary", {}, `${figures.length - 8} more figures`), listed(figures.slice(8))));
  if (member.stop !== "terminated") parts.push(html("p", { class: "warn" }, `Not finished: ${member.stop.replaceAll("_", " ")}${member.failure ? ` (${member.failure.stage}, ${member.failure.type}: ${member.failure.message})` : ""}.`));
  if (reward?.error) parts.push(html("p", { class: "warn" }, `Not graded: ${reward.error}`));
  const view = member.view;
  if (view) {
    parts.push(html("p", { class: "title" }, view.title));
    const facts = Object.entries(view.facts ?? {});
    if (facts.length) parts.push(html("dl", { class: "facts" }, facts.map(([name, value]) => html("div", {}, html("dt", {}, name), html("dd", {}, value)))));
  }
  const count = member.turns.length;
  if (count) {
    const mine = { ...link, on: (listener) => link.on((turn) => listener(Math.min(turn, count - 1))), get: () => Math.min(link.get(), count - 1) };
    parts.push(turnText(member, mine));
    const said = new Set(count === 1 ? [member.turns[0].observation.trim(), member.turns[0].action.trim()] : []);
    for (const panel of view?.panels ?? []) {
      if (panel.kind !== "text" || !said.has((panel.body ?? "").trim())) parts.push(drawPanel(panel, mine, count));
    }
    if (count > 1) parts.push(...turnBars(member, mine, graderName));
  }
  const rewards = Object.entries(reward?.components ?? {});
  if (rewards.length) parts.push(html("details", {}, html("summary", {}, `The reward of ${reward.grader} by component`), componentTable(member)));
  if (entry.system_prompt) parts.push(html("details", {}, html("summary", {}, "The rules it was given"), long(entry.system_prompt, "The rules it was given")));
  return parts;
}

function componentTable(member) {
  const sums = Object.create(null);  // a component may be called "constructor"
  for (const turn of member.turns) for (const [component, value] of turn.terms) sums[component] = (sums[component] ?? 0) + value;
  const rows = Object.entries(member.reward.components).map(([name, value]) =>
    html("tr", {}, html("th", { scope: "row" }, name.replaceAll("_", " ")), html("td", {}, write(value, 3)), html("td", {}, write(sums[name], 3, true))));
  return html("div", { class: "scroll" }, html("table", {}, html("thead", {}, html("tr", {}, ["component", "value", "sum of terms"].map((name) => html("th", { scope: "col" }, name)))), html("tbody", {}, rows)));
}

function turnBars(member, link, graderName) {
  const charts = [];
  const add = (values, label) => {
    if (!values.some(known)) return;
    const figure = html("figure", { class: "panel" }, html("figcaption", {}, label));
    barChart(figure, { values, link, label });
    charts.push(figure);
  };
  const rewards = member.turns.map((turn) => turn.env_reward);
  const drawn = (member.view?.panels ?? []).some((panel) => Object.values(panel.series ?? {}).some((values) => values.length === rewards.length && values.every((value, index) => Math.abs(value - rewards[index]) < 1e-5)));
  if (!drawn) add(rewards, "Reward of the turn");
  add(member.turns.map((turn) => (turn.terms.length ? turn.terms.reduce((sum, [, value]) => sum + value, 0) : null)), `Terms of ${member.reward?.grader ?? graderName}`);
  if (member.advantages) add(member.turns.map((_, index) => member.advantages[index]), "Advantage within the group");
  return charts;
}

function drawPanel(panel, link, count) {
  const figure = html("figure", { class: "panel" }, html("figcaption", {}, panel.title));
  if (panel.kind === "lines") {
    const names = Object.keys(panel.series ?? {});
    const length = Math.max(0, ...names.map((name) => panel.series[name].length));
    if (!length) return figure;
    const early = length === count + 1 ? 1 : 0;  // then the first value is from before the first turn
    const tied = length === count + early;
    lineChart(figure, {
      series: names.map((name) => ({ name, x: panel.series[name].map((_, index) => index + 1 - early * 0.5), y: panel.series[name] })),
      truth: panel.truth, limits: panel.limits, label: panel.title, xName: "turn", slots: tied ? count : null,
      link: tied ? { get: () => link.get() + early, set: (index) => link.set(index - early), on: (listener) => link.on((turn) => listener(turn + early)) } : null,
    });
  } else if (panel.kind === "strip") {
    stripChart(figure, { labels: panel.labels ?? [], link, label: panel.title, kinds: kindsOf[panel.title] ?? [] });
  } else if (panel.kind === "table") {
    figure.append(html("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": panel.title }, html("table", {},
      html("thead", {}, html("tr", {}, (panel.columns ?? []).map((name) => html("th", { scope: "col", class: "words" }, name)))),
      html("tbody", {}, (panel.rows ?? []).map((row) => html("tr", {}, row.map((text) => html("td", { class: "words" }, text))))))));
  } else {
    figure.append(long(panel.body ?? "", panel.title));
  }
  return figure;
}

function turnText(member, link) {
  const box = html("div", { class: "turn" });
  link.on((index) => {
    const turn = member.turns[index];
    box.replaceChildren(
      html("div", { class: "said" }, html("h4", {}, turn.restart ? "It read (and nothing from before)" : "It read"), turn.observation || !turn.results ? long(turn.observation, "It read") : null, results(turn.results)),
      html("div", { class: "said" }, html("h4", {}, "It answered"), html("pre", { class: "answer" }, spanned(turn)), calls(turn.calls),
        turn.error ? html("p", { class: "warn" }, `Not understood: ${turn.error}`) : null,
        turn.cut ? html("p", { class: "warn" }, "Cut by the token budget.") : null,
        turn.tokens ? tokens(turn.tokens) : null,
        index === member.turns.length - 1 ? results(member.results) : null,
        turn.terms.length ? html("p", { class: "small soft" }, "terms: ", turn.terms.map(([component, value, span]) => `${component.replaceAll("_", " ")}${span ? ` (${span})` : ""} ${write(value, 4, true)}`).join(" · ")) : null),
    );
  });
  return box;
}

function calls(list) {
  if (!list?.length) return null;
  return html("ul", { class: "calls" }, list.map(([name, args, fault, error]) => html("li", { class: fault ? "warn" : "" },
    html("b", {}, name || "?"), `(${Object.entries(args).map(([key, value]) => `${key} = ${JSON.stringify(value)}`).join(", ")})`, fault ? ` ${fault}: ${error}` : "")));
}

function results(list) {
  if (!list?.length) return null;
  return html("dl", { class: "results" }, list.flatMap(([name, content]) => [html("dt", {}, `${name || "?"} gave`), html("dd", {}, html("pre", {}, content))]));
}

function spanned(turn) {
  const parts = [];
  let at = 0;
  for (const [name, start, end] of [...turn.spans].sort((a, b) => a[1] - b[1])) {
    if (start < at) continue;
    parts.push(turn.action.slice(at, start), html("mark", { title: name }, turn.action.slice(start, end), html("sub", {}, name)));
    at = end;
  }
  parts.push(turn.action.slice(at) || (at ? "" : "(nothing)"));
  return parts;
}

// Surprise is shown twice, as depth of color and as a number, so that it can be read without telling colors apart.
function tokens(list) {
  const numbers = list.length <= 60;
  return html("div", { class: "tokens", role: "img", "aria-label": `Probabilities of the tokens: ${list.map(([text, logprob]) => `${text.trim()} ${Math.exp(logprob).toFixed(2)}`).join(", ")}` },
    list.map(([text, logprob]) => {
      const chance = Math.exp(logprob);
      const token = html("span", { class: "token", title: `${text} · probability ${write(chance, 4)} · ${write(logprob, 3)} nats` }, html("span", {}, text.replaceAll("\n", "⏎") || "∅"), numbers ? html("small", {}, chance >= 0.995 ? "1" : chance < 0.005 ? "<.01" : chance.toFixed(2).replace(/^0/, "")) : null);
      token.style.setProperty("--surprise", clamp(-logprob / 4, 0, 1).toFixed(3));
      return token;
    }));
}
