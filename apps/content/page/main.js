/** The page of live results: polls once a second; filters are in the URL. */
import { count, line, make, meter, rate, show, stripes, took } from "./parts.js";

const EVERY = 1000;
const AFTER_TROUBLE = 4000;
const SHOWN = matchMedia("(max-width: 860px)").matches ? 20 : 40;
const WHY = { undecodable: "cannot be decoded", failed: "failed at every attempt", expired: "too late", lost: "its engine crashed" };

const at = (id) => document.getElementById(id);
const wanted = Object.fromEntries(new URLSearchParams(location.search));
let paused = false;
let titles = {};

// -- asking ---------------------------------------------------------------------------------------

async function ask(path, query = {}) {
  const words = new URLSearchParams(Object.entries(query).filter(([, value]) => value));
  const response = await fetch(`api/${path}${words.size ? `?${words}` : ""}`, { headers: { accept: "application/json" } });
  if (response.status === 401) throw Object.assign(new Error("This server needs a login."), { stranger: true });
  const told = await response.json();
  if (!response.ok) throw new Error(told.detail ?? `The server returned status ${response.status}.`);
  return told;
}

function say(tone, words) {
  const live = at("live");
  live.className = `live ${tone}`;
  live.lastElementChild.textContent = words;
}

function complain(error) {
  const trouble = at("trouble");
  trouble.hidden = error === null;
  if (error === null) return;
  const words = error instanceof TypeError ? "The server does not answer. This page reconnects automatically." : error.message;
  trouble.replaceChildren(make("span", {}, words), ...(error.stranger ? [make("a", { href: "/" }, "Log in")] : []));
}

async function look() {
  try {
    const [now, results] = await Promise.all([ask("now"), paused ? null : latest()]);
    showNow(now);
    if (results && !paused) showResults(results.items);
    complain(null);
    say(now.engines > 0 ? "ok" : "wait", now.engines > 0 ? "live" : "stream not running");
    return EVERY;
  } catch (error) {
    complain(error);
    say("bad", error.stranger ? "logged out" : "reconnecting");
    return AFTER_TROUBLE;
  }
}

const latest = () => ask("results", { plan: wanted.plan, source: wanted.source, flagged: wanted.flagged, limit: SHOWN });

// -- plans, sources, dead letters -----------------------------------------------------------------

function showNow(now) {
  titles = Object.fromEntries(now.plans.map((plan) => [plan.name, plan.title]));
  showTiles(now);
  show(at("plans"), [together(now.plans), ...now.plans].map(planCard));
  show(at("sources"), now.sources.map((source) => sourceLine(source, Math.max(1, ...now.sources.map((each) => each.rate)))));
  const dead = now.dead.map(deadLine);
  show(at("dead"), dead.length ? dead : [make("li", { class: "faint" }, "None. A message that cannot be decoded or fails at every attempt is stored here.")]);
  showChoice(now.sources);
}

const recent = (seconds) => seconds.slice(-10).reduce((sum, each) => sum + each, 0) / 10;

function showTiles(now) {
  const total = together(now.plans).seconds;
  const behind = now.sources.reduce((sum, source) => sum + (source.lag ?? 0), 0);
  const filtered = now.plans.reduce((sum, plan) => sum + plan.filtered, 0);
  const dead = now.dead.reduce((sum, each) => sum + each.count, 0);
  show(at("tiles"), [
    tile("Results per second", rate(recent(total)), `${count(total.reduce((sum, each) => sum + each, 0))} in the last minute`, "", line(total, "spark")),
    tile("Flagged", count(now.flagged), "in the last minute"),
    tile("Filtered out", count(filtered), topReason(now.plans)),
    tile("In flight", count(now.in_flight), `lag ${count(behind)} · ${now.engines} engines`),
    tile("Waiting for retry", count(now.retries), "after a failure", now.retries ? "wait" : ""),
    tile("Dead letters", count(dead), dead ? `for ${now.dead.length === 1 ? "one reason" : `${now.dead.length} reasons`}` : "no message failed", dead ? "bad" : "ok"),
  ]);
}

function tile(name, value, under, tone = "", picture = null) {
  return make("div", { class: `tile ${tone}` }, make("span", { class: "name" }, name), make("span", { class: "value" }, value), make("span", { class: "under" }, under), picture);
}

function topReason(plans) {
  const reasons = {};
  for (const plan of plans) for (const [reason, number] of Object.entries(plan.reasons)) reasons[reason] = (reasons[reason] ?? 0) + number;
  const [first] = Object.entries(reasons).sort((left, right) => right[1] - left[1]);
  return first ? `mostly: ${first[0]}` : "no post was filtered";
}

/** The sum of all plans. */
function together(plans) {
  const sum = (of) => plans.reduce((whole, plan) => whole + of(plan), 0);
  const seconds = plans[0].seconds.map((_, second) => sum((plan) => plan.seconds[second]));
  return { name: "", title: "All plans", done: sum((plan) => plan.done), filtered: sum((plan) => plan.filtered), failed: sum((plan) => plan.failed), seconds, p50: undefined };
}

function planCard(plan) {
  const failed = plan.failed ? make("em", {}, ` · ${count(plan.failed)} failed`) : null;
  const under = `${count(plan.done)} done${plan.filtered ? ` · ${count(plan.filtered)} filtered` : ""}`;
  return make(
    "button",
    { type: "button", class: "plan", "aria-pressed": String((wanted.plan ?? "") === plan.name), "data-plan": plan.name },
    make("span", { class: "title", title: plan.title }, plan.title),
    make("span", { class: "pulse" }, make("b", {}, rate(recent(plan.seconds)), make("small", {}, "/s")), line(plan.seconds)),
    make("span", { class: "under" }, under, failed),
    make("span", { class: "under" }, plan.p50 === undefined ? "since the engines started" : plan.p50 === null ? "no samples yet" : `p50 ${took(plan.p50)} · p99 ${took(plan.p99)}`),
  );
}

function sourceLine(source, most) {
  const title = `${source.topic}: ${source.plans.join(", ") || "no plan, acknowledged and counted"}; weight ${source.weight}, limit ${source.max_qps ?? "none"}${source.max_qps ? " per second" : ""}`;
  return make(
    "li",
    {},
    make(
      "button",
      { type: "button", "aria-pressed": String(wanted.source === source.name), "data-source": source.name, title },
      make("span", { class: "name" }, source.name.replaceAll("_", " ")),
      meter(source.rate / most, source.enabled ? "run" : "off"),
      make("span", { class: "num" }, source.enabled ? rate(source.rate) : "off"),
      make("span", { class: "num faint" }, source.lag === null ? "–" : count(source.lag)),
    ),
  );
}

function deadLine(dead) {
  return make(
    "li",
    {},
    make("b", {}, `${WHY[dead.why] ?? dead.why}${dead.kind ? `: ${dead.kind}` : ""}`),
    make("span", { class: "count" }, count(dead.count)),
    make("span", { class: "why" }, dead.example.slice(0, 220)),
  );
}

function showChoice(sources) {
  const choice = at("source");
  if (choice.options.length === sources.length + 1) return;
  choice.replaceChildren(make("option", { value: "" }, "all sources"), ...sources.map((source) => make("option", { value: source.name }, source.name.replaceAll("_", " "))));
  choice.value = wanted.source ?? "";
}

// -- results --------------------------------------------------------------------------------------

function showResults(items) {
  const place = at("results");
  const shown = new Map([...place.children].map((row) => [row.dataset.n, row]));
  const first = shown.size === 0;
  for (const item of [...items].reverse()) {
    if (shown.has(String(item.n))) continue;
    place.prepend(resultRow(item, !first));
  }
  const kept = new Set(items.map((item) => String(item.n)));
  for (const row of [...place.children]) if (!kept.has(row.dataset.n)) row.remove();
  const nothing = at("nothing");
  nothing.hidden = items.length > 0;
  if (!items.length) nothing.replaceChildren(make("b", {}, "No results yet"), make("div", {}, filtering() ? "No result matches these filters." : make("span", {}, "Send some posts: ", make("code", {}, "python -m apps.content.traffic"))));
}

const filtering = () => Boolean(wanted.plan || wanted.source || wanted.flagged);

function resultRow({ n, post, plan, source, text, at: when, finding }, isNew) {
  const figures = finding.figures.map((figure) =>
    make("span", { class: "figure" }, make("span", {}, figure.name), meter(figure.value, finding.tone), make("span", {}, `${Math.round(figure.value * 100)}%`)),
  );
  return make(
    "li",
    { class: isNew ? "new" : null, "data-n": n },
    make("time", { datetime: when }, new Date(when).toLocaleTimeString("en-GB")),
    make(
      "div",
      { class: "grow" },
      make("div", { class: "said" }, text.trim() || "(no text)"),
      make("div", { class: "from" }, make("b", {}, titles[plan] ?? plan), ` · post ${post} · ${source.replaceAll("_", " ")}`),
    ),
    make(
      "div",
      { class: "finding" },
      make("span", { class: `state ${finding.tone}` }, make("i", { "aria-hidden": "true" }), finding.verdict),
      ...figures,
      finding.stripes.length ? stripes(finding.stripes) : null,
      finding.summary ? make("span", { class: "summary", title: finding.summary }, `“${finding.summary}”`) : null,
    ),
  );
}

// -- filters --------------------------------------------------------------------------------------

function want(name, value) {
  if (value) wanted[name] = value;
  else delete wanted[name];
  const words = new URLSearchParams(wanted).toString();
  history.replaceState(null, "", words ? `?${words}` : location.pathname);
  at("source").value = wanted.source ?? "";
  at("flagged").setAttribute("aria-pressed", String(Boolean(wanted.flagged)));
  at("results").replaceChildren();
  if (paused) togglePause();
  else void look();
}

function togglePause() {
  paused = !paused;
  at("pause").textContent = paused ? "Resume" : "Pause";
  at("pause").setAttribute("aria-pressed", String(paused));
  if (!paused) void look();
}

at("plans").addEventListener("click", (event) => {
  const name = event.target.closest("[data-plan]")?.dataset.plan;
  if (name !== undefined) want("plan", wanted.plan === name ? "" : name);
});
at("sources").addEventListener("click", (event) => {
  const name = event.target.closest("[data-source]")?.dataset.source;
  if (name) want("source", wanted.source === name ? "" : name);
});
at("source").addEventListener("change", (event) => want("source", event.target.value));
at("flagged").addEventListener("click", () => want("flagged", wanted.flagged ? "" : "true"));
at("pause").addEventListener("click", togglePause);
at("flagged").setAttribute("aria-pressed", String(Boolean(wanted.flagged)));

for (;;) {
  const pause = document.visibilityState === "visible" ? await look() : EVERY;
  await new Promise((go) => setTimeout(go, pause));
}
