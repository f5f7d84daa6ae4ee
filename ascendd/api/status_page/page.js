// The status page: takes events, fills the board. Nothing is fetched but the daemon's own /status/events.

import { Chart, element, table } from "./charts.js";
import { follow, forgetKey, keepKey, storedKey } from "./stream.js";
import { bytes, clock, currentLanguage, moment, seconds, setLanguage, span, text } from "./texts.js";

const root = document.documentElement;
const at = (id) => document.getElementById(id);
const THEMES = ["auto", "light", "dark"];
const STORED_THEME = "ascendd.theme";
// Points of the history in a minute.
const MINUTE = 12;
const percent = (value) => (value === null || value === undefined ? "–" : `${(value * 100).toPrecision(2) * 1} %`);
const number = (value) => (value === null || value === undefined ? "–" : `${value >= 100 ? Math.round(value) : value.toPrecision(3) * 1}`);

const charts = [
  new Chart("chart_first", [{ column: "first_token_p50_s", name: "p50" }, { column: "first_token_p95_s", name: "p95", second: true }], seconds),
  new Chart("chart_between", [{ column: "inter_token_p50_s", name: "p50" }, { column: "inter_token_p95_s", name: "p95", second: true }], seconds),
  new Chart("chart_queue", [{ column: "running", name: "running" }, { column: "waiting", name: "waiting", second: true }], number),
  new Chart("chart_speed", [{ column: "generation_tokens_per_s", name: "generated" }, { column: "prompt_tokens_per_s", name: "prompt", second: true }], number),
  new Chart("chart_kv", [{ column: "kv_usage", name: "used" }], percent, 1),
];
charts.at(-1).node.classList.add("wide");
at("figures").append(...charts.map((chart) => chart.node));

let status = null;
let history = null;
let lostFor = null;

// Only what changed is written, so that a screen reader repeats nothing and a selection survives.
function write(node, value) {
  if (node.textContent !== value) node.textContent = value;
}

function fill(node, ...children) {
  const fresh = element("div", {}, ...children);
  if (node.innerHTML !== fresh.innerHTML) node.replaceChildren(...fresh.childNodes);
}

function look() {
  if (lostFor !== null) return ["bad", "lost"];
  if (status.phase === "serving" && status.held) return ["warn", "held"];
  if (status.phase === "serving") return status.degraded ? ["warn", "serving_less"] : ["good", "serving"];
  return [status.phase === "starting" ? "warn" : "bad", status.phase];
}

function why() {
  if (lostFor !== null) return text("lost_why", { time: status ? clock(status.unix_s) : "–", seconds: lostFor });
  if (status.phase !== "serving") return status.text;
  return status.degraded;
}

function showState() {
  const [kind, word] = look();
  at("state").className = `state ${kind}`;
  at("board").classList.toggle("stale", lostFor !== null);
  write(at("phase"), text(word));
  write(at("why"), why());
  write(at("name"), status.instance);
  const facts = status.engine;
  const parts = [status.model, status.address, text("up", { span: span(status.uptime_s) })];
  if (facts.num_blocks) parts.push(text("engine_facts", { blocks: facts.num_blocks, size: facts.block_size, context: facts.max_model_len }));
  write(at("where"), parts.join(" · "));
  document.title = `${text(word)} · ${status.instance} · ascendd`;
  write(at("freshness"), text("fresh", { time: clock(status.unix_s) }));
  write(at("version"), `ascendd ${status.version}`);
}

function showTiles() {
  // What was measured long ago, or before the end of what served, is no figure of now.
  const last = (column, points) => (history === null || status.phase !== "serving" ? null : history[column].slice(-points).findLast((value) => value !== null) ?? null);
  const { load } = status;
  const tiles = [
    ["running", number(load.running)], ["waiting", number(load.waiting)], ["kv", percent(load.kv_usage)],
    ["speed", number(last("generation_tokens_per_s", 1)), "/s"], ["first", seconds(last("first_token_p95_s", MINUTE)), "p95"], ["between", seconds(last("inter_token_p95_s", MINUTE)), "p95"],
  ];
  fill(at("tiles"), ...tiles.map(([name, value, unit]) => element("div", {}, element("dt", {}, text(name)),
    element("dd", {}, value, unit && value !== "–" ? element("small", {}, unit) : null))));
}

function mood(state) {
  const kind = { ready: "good", serving: "good", pass: "good", OK: "good", Warning: "warn", Alarm: "bad", Critical: "bad", UNKNOWN: "bad", failed: "bad", backoff: "bad", degraded: "bad", fail: "bad", warn: "warn", warnings: "warn", error: "warn" }[state];
  return element("span", { class: kind ? `${kind}-text` : "" }, text(state));
}

function showTables() {
  const chips = new Map((status.checks?.chips ?? []).map((chip) => [chip.device, chip]));
  const chipHeads = chips.size > 0 ? ["health", "power", "temperature", "memory"] : [];
  // Health, power, temperature and memory take the room of two cards; one more is wide, so that none is alone in its row.
  for (const id of ["ranks", "incident"]) at(id).parentNode.classList.toggle("wide", chips.size > 0);
  fill(at("ranks"), table(["rank", "stage", "slice", "device", "state", ...chipHeads].map((head) => text(head)), status.ranks.map((row) => {
    const chip = chips.get(row.device);
    const cells = [`${row.rank}`, `${row.stage}`, `${row.slice}`, row.device, mood(row.state)];
    if (chips.size > 0) {
      const shown = (value, unit) => (value === null || value === undefined ? "–" : `${value} ${unit}`);
      cells.push(chip?.health ? mood(chip.health) : "–", shown(chip?.power_w, "W"), shown(chip?.temperature_c, "°C"),
        chip?.hbm_total_mb ? `${chip.hbm_used_mb ?? "–"} / ${chip.hbm_total_mb} MB` : "–");
    }
    return cells;
  })), chips.size > 0 ? element("p", { class: "muted" }, text("chips_at", { time: moment(status.checks.unix_s) })) : null);
  fill(at("processes"), table(["process", "state", "pid", "memory", "starts", "since"].map((head) => text(head)), status.processes.map((row) =>
    [row.role, mood(row.state), `${row.pid ?? "–"}`, row.rss_bytes ? bytes(row.rss_bytes) : "–", `${row.num_starts ?? "–"}`, row.since_s ? span(row.since_s) : "–"])));
  const others = status.neighbours.map((row) => [row.instance, row.model ?? "–", row.address ?? "–", mood(row.phase),
    `${row.load?.running ?? "–"}`, `${row.load?.waiting ?? "–"}`, percent(row.load?.kv_usage)]);
  const own = [`${status.instance} (${text("here")})`, status.model, status.address, mood(status.phase), `${status.load.running}`, `${status.load.waiting}`, percent(status.load.kv_usage)];
  fill(at("instances"), table(["instance", "model", "address", "state", "running", "waiting", "kv"].map((head) => text(head)), [own, ...others]),
    others.length > 0 ? null : element("p", { class: "muted" }, text("alone")));
}

function showDoctor() {
  const { doctor, checks } = status;
  const facts = element("dl", { class: "facts" }, element("dt", {}, text("at_start")),
    element("dd", {}, mood(doctor.verdict), doctor.checks?.length ? ` (${doctor.checks.join(", ")})` : ""));
  const results = checks?.results ?? [];
  const worst = ["fail", "error", "warn"].find((verdict) => results.some((row) => row.verdict === verdict)) ?? "pass";
  facts.append(element("dt", {}, text("live")), element("dd", {}, checks ? mood(worst) : element("span", { class: "muted" }, text("live_none")), checks ? `, ${moment(checks.unix_s)}` : ""));
  const bad = results.filter((row) => !["pass", "skipped"].includes(row.verdict));
  fill(at("doctor"), facts, bad.length > 0 ? element("ul", { class: "checks" }, ...bad.map((row) =>
    element("li", {}, mood(row.verdict), " ", element("code", {}, row.check), ` ${row.summary}`))) : null);
}

function showIncident() {
  const incident = status.last_incident;
  if (incident === null) {
    fill(at("incident"), element("p", { class: "muted" }, text("incident_none")));
    return;
  }
  const pairs = [["when", moment(incident.unix_s)], ["what", incident.reason], ["process", `${incident.child} (${incident.pid})`], ["cause", incident.cause],
    ["episode", incident.episode], ["more", element("code", {}, `ascendd report ${status.instance} --last`)]];
  fill(at("incident"), element("dl", { class: "facts" }, ...pairs.flatMap(([name, value]) => [element("dt", {}, text(name)), element("dd", {}, value)])));
}

function show() {
  if (status === null) return;
  at("login").hidden = true;
  at("board").hidden = false;
  showState();
  showTiles();
  showTables();
  showDoctor();
  showIncident();
}

function words() {
  root.lang = currentLanguage() === "zh" ? "zh-CN" : "en";
  for (const node of document.querySelectorAll("[data-text]")) node.textContent = text(node.dataset.text);
  const other = currentLanguage() === "zh" ? ["English", "en"] : ["中文", "zh-CN"];
  [at("language").textContent, at("language").lang] = other;
  at("theme").textContent = text(`theme_${root.dataset.theme}`);
  at("theme").setAttribute("aria-label", `${text("theme")}: ${at("theme").textContent}`);
  for (const chart of charts) chart.draw();
  show();
}

function askForKey(message) {
  at("board").hidden = true;
  at("login").hidden = false;
  at("forget").hidden = true;
  at("login-error").textContent = message;
  document.title = `ascendd · ${text("login_title")}`;
  at("key").focus();
}

function start() {
  at("forget").hidden = storedKey() === null;
  follow("status/events", {
    event(name, value) {
      lostFor = null;
      if (name === "status") {
        status = value;
        show();
      } else if (name === "history") {
        history = value;
        for (const chart of charts) chart.draw(history);
      }
    },
    lost(left) {
      lostFor = left;
      if (status !== null) showState();
    },
    refused(code) {
      forgetKey();
      status = null;
      askForKey(text(code === 403 ? "key_scope" : "key_wrong"));
    },
  });
}

at("language").addEventListener("click", () => { setLanguage(currentLanguage() === "zh" ? "en" : "zh"); words(); });
at("theme").addEventListener("click", () => {
  root.dataset.theme = THEMES[(THEMES.indexOf(root.dataset.theme) + 1) % THEMES.length];
  localStorage.setItem(STORED_THEME, root.dataset.theme);
  words();
});
at("forget").addEventListener("click", () => { forgetKey(); location.reload(); });
at("login").addEventListener("submit", (event) => {
  event.preventDefault();
  const key = at("key").value.trim();
  at("key").value = "";
  if (key === "") { at("login-error").textContent = text("key_missing"); return; }
  // What cannot stand in a header is no key of anybody.
  if (!/^[\x21-\x7e]+$/.test(key)) { at("login-error").textContent = text("key_wrong"); return; }
  keepKey(key);
  at("login-error").textContent = "";
  start();
});

const theme = localStorage.getItem(STORED_THEME);
if (THEMES.includes(theme)) root.dataset.theme = theme;
words();
if (root.dataset.keys === "required" && storedKey() === null) askForKey("");
else start();
