// Every word of the page in both languages; what the daemon says of itself is shown as it says it.

const ENGLISH = {
  skip: "Skip to the state", forget: "Forget the key", theme: "Theme", theme_auto: "System", theme_light: "Light", theme_dark: "Dark",
  login_title: "Status of this instance", login_why: "A key with the scope admin shows it. The key stays in this tab and is sent to this server only.",
  key: "API key", show: "Show", key_wrong: "This key is not known here.", key_scope: "This key has no scope admin.", key_missing: "Enter a key.",
  connecting: "Connecting", lost: "No connection", lost_why: "The daemon does not answer; the figures are those of {time}. Next try in {seconds} s.",
  starting: "Starting", serving: "Serving", degraded: "Not serving", draining: "Draining", stopping: "Stopping", stopped: "Stopped",
  held: "Held: no new requests", serving_less: "Serving, degraded", silent: "Silent",
  running: "Running", waiting: "Waiting", kv: "KV cache", speed: "Tokens out", first: "First token", between: "Between tokens",
  charts: "The last minutes", chart_first: "Time to first token", chart_between: "Time between tokens", chart_queue: "Sequences", chart_speed: "Tokens per second",
  chart_kv: "KV cache in use", p50: "p50", p95: "p95", prompt: "prompt", generated: "generated", used: "in use", now: "now", ago: "{minutes} min ago", no_data: "nothing measured yet",
  as_table: "As a table", summary: "{title}: {parts}", latest: "{name} {value}, at most {most}", time: "Time",
  ranks: "Ranks and chips", rank: "Rank", stage: "Stage", slice: "Slice", device: "Device", state: "State", power: "Power", temperature: "Temperature", memory: "Memory", health: "Health", chips_at: "Chips as npu-smi showed them at {time}; read anew every five minutes.",
  processes: "Processes", process: "Process", pid: "PID", starts: "Starts", since: "Since",
  doctor: "Doctor", at_start: "At the start", live: "While serving", live_none: "the first live checks come five minutes after the start",
  pass: "pass", warnings: "warnings", warn: "warning", fail: "failed", error: "could not check", skipped: "skipped", unknown: "unknown",
  incident: "Last incident", incident_none: "None since the start.", when: "When", what: "What", cause: "Cause", episode: "Episode", more: "More",
  instances: "Instances on this host", instance: "Instance", model: "Model", address: "Address", alone: "No other instance runs on this host.", here: "this one",
  up: "up {span}", engine_facts: "{blocks} blocks of {size} tokens, context {context}", fresh: "Figures of {time}",
  ready: "ready", loading: "loading", backoff: "waits to restart", failed: "failed",
};

const CHINESE = {
  skip: "跳到状态", forget: "清除密钥", theme: "主题", theme_auto: "跟随系统", theme_light: "浅色", theme_dark: "深色",
  login_title: "本实例状态", login_why: "需要带 admin 权限的密钥。密钥只保存在此标签页，只发送给本服务器。",
  key: "API 密钥", show: "查看", key_wrong: "此密钥无效。", key_scope: "此密钥没有 admin 权限。", key_missing: "请输入密钥。",
  connecting: "正在连接", lost: "连接已断开", lost_why: "守护进程没有应答；以下为 {time} 的数据。{seconds} 秒后重试。",
  starting: "启动中", serving: "服务中", degraded: "未提供服务", draining: "排空中", stopping: "停止中", stopped: "已停止",
  held: "已暂停：不接收新请求", serving_less: "服务中（降级）", silent: "无应答",
  running: "运行中", waiting: "排队", kv: "KV 缓存", speed: "输出速度", first: "首个 token", between: "token 间隔",
  charts: "最近数分钟", chart_first: "首个 token 时延", chart_between: "token 间隔时延", chart_queue: "序列数", chart_speed: "每秒 token 数",
  chart_kv: "KV 缓存占用", p50: "p50", p95: "p95", prompt: "提示", generated: "生成", used: "占用", now: "现在", ago: "{minutes} 分钟前", no_data: "尚无数据",
  as_table: "以表格显示", summary: "{title}：{parts}", latest: "{name} {value}，最大 {most}", time: "时间",
  ranks: "进程组与芯片", rank: "Rank", stage: "流水段", slice: "张量片", device: "设备", state: "状态", power: "功率", temperature: "温度", memory: "内存", health: "健康", chips_at: "芯片数据为 npu-smi 在 {time} 的读数，每五分钟更新。",
  processes: "进程", process: "进程", pid: "PID", starts: "启动次数", since: "持续",
  doctor: "体检", at_start: "启动时", live: "服务期间", live_none: "启动五分钟后进行首次在线检查",
  pass: "通过", warnings: "有警告", warn: "警告", fail: "失败", error: "无法检查", skipped: "已跳过", unknown: "未知",
  incident: "最近事件", incident_none: "启动以来没有事件。", when: "时间", what: "内容", cause: "原因", episode: "编号", more: "详情",
  instances: "本机实例", instance: "实例", model: "模型", address: "地址", alone: "本机没有其他实例。", here: "本实例",
  up: "已运行 {span}", engine_facts: "{blocks} 块，每块 {size} token，上下文 {context}", fresh: "数据时间 {time}",
  ready: "就绪", loading: "加载中", backoff: "等待重启", failed: "失败",
};

const STORED = "ascendd.language";
let language = localStorage.getItem(STORED) ?? (navigator.language.startsWith("zh") ? "zh" : "en");

export const currentLanguage = () => language;

export function setLanguage(name) {
  language = name;
  localStorage.setItem(STORED, name);
}

export function text(key, values = {}) {
  const found = (language === "zh" ? CHINESE : ENGLISH)[key] ?? key;
  return found.replace(/\{(\w+)\}/g, (_, name) => values[name]);
}

export const clock = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleTimeString(language === "zh" ? "zh-CN" : "en-GB");
export const moment = (unixSeconds) => new Date(unixSeconds * 1000).toLocaleString(language === "zh" ? "zh-CN" : "en-GB");

export function span(seconds) {
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  return seconds < 172800 ? `${(seconds / 3600).toFixed(1)} h` : `${(seconds / 86400).toFixed(1)} d`;
}

export function bytes(count) {
  return count >= 2 ** 30 ? `${(count / 2 ** 30).toFixed(1)} GiB` : `${Math.round(count / 2 ** 20)} MiB`;
}

export function seconds(value) {
  if (value === null || value === undefined) return "–";
  return value < 1 ? `${(value * 1000).toPrecision(2) * 1} ms` : `${value.toPrecision(3) * 1} s`;
}
