/** Lazy imports that survive a restart of the server and a new build, which removes the old files. */
const KEY = "tidemill.reloaded";
const RELOAD_AGAIN_AFTER_MS = 15_000;
const RETRY_AFTER_MS = 1_000;

function hasJustReloaded(): boolean {
  try {
    return Date.now() - Number(window.sessionStorage.getItem(KEY) ?? 0) < RELOAD_AGAIN_AFTER_MS;
  } catch {
    return true;
  }
}

/** Wait until the server answers: as long as it is away, nothing is known about its files. */
async function untilServerAnswers(): Promise<void> {
  for (;;) {
    try {
      await fetch("/", { cache: "no-store" });
      return;
    } catch {
      await new Promise((resolve) => setTimeout(resolve, RETRY_AFTER_MS));
    }
  }
}

/** Import a module, when the server answers; if its file is gone, reload the page to get the new build. */
export async function importOrReload<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch {
    await untilServerAnswers();
  }
  try {
    return await load();
  } catch (error) {
    if (hasJustReloaded()) throw error;
    window.sessionStorage.setItem(KEY, String(Date.now()));
    window.location.reload();
    return new Promise<T>(() => {});
  }
}
