/** Lazy imports that survive a new build: a deploy removes the old files, so the page reloads itself once. */
const KEY = "tidemill.reloaded";
const RELOAD_AGAIN_AFTER_MS = 15_000;

function hasJustReloaded(): boolean {
  try {
    return Date.now() - Number(window.sessionStorage.getItem(KEY) ?? 0) < RELOAD_AGAIN_AFTER_MS;
  } catch {
    return true;
  }
}

/** Import a module; if its file is gone, reload the page to get the new build. */
export async function importOrReload<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    if (hasJustReloaded()) throw error;
    window.sessionStorage.setItem(KEY, String(Date.now()));
    window.location.reload();
    return new Promise<T>(() => {});
  }
}
