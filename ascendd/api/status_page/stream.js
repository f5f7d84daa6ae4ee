// Server-sent events by fetch, because EventSource cannot send an Authorization header.

const STORED = "ascendd.key";
// The server speaks once a second; a connection that says nothing for so long is dead.
const SILENCE_MS = 20000;
const PAUSES_S = [1, 2, 4, 8, 10];

export const storedKey = () => sessionStorage.getItem(STORED);
export const keepKey = (key) => sessionStorage.setItem(STORED, key);
export const forgetKey = () => sessionStorage.removeItem(STORED);

const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Calls on.event(name, value) for each event, on.lost(seconds) before each new try and on.refused(status) once, which ends it.
export async function follow(url, on) {
  for (let tries = 0; ; tries += 1) {
    const abort = new AbortController();
    let timer = setTimeout(() => abort.abort(), SILENCE_MS);
    try {
      const key = storedKey();
      const headers = key === null ? {} : { Authorization: `Bearer ${key}` };
      const response = await fetch(url, { headers, signal: abort.signal, cache: "no-store" });
      if (response.status === 401 || response.status === 403) {
        on.refused(response.status);
        return;
      }
      if (response.ok) {
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        let pending = "";
        for (;;) {
          const { done, value } = await reader.read();
          if (done) break;
          clearTimeout(timer);
          timer = setTimeout(() => abort.abort(), SILENCE_MS);
          const events = (pending + value).split("\n\n");
          pending = events.pop();
          for (const event of events) {
            const lines = event.split("\n");
            const name = lines.find((line) => line.startsWith("event: "))?.slice(7);
            const data = lines.find((line) => line.startsWith("data: "))?.slice(6);
            if (name && data) {
              tries = -1;
              on.event(name, JSON.parse(data));
            }
          }
        }
      }
    } catch (error) {
      if (!(error instanceof TypeError || error.name === "AbortError")) throw error;
    } finally {
      clearTimeout(timer);
      abort.abort();
    }
    const waits = PAUSES_S[Math.min(Math.max(tries, 0), PAUSES_S.length - 1)];
    for (let left = waits; left > 0; left -= 1) {
      on.lost(left);
      await pause(1000);
    }
  }
}
