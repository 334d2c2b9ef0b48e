/** Parts of the console that are loaded when they are needed: when the server has been given a newer console meanwhile,
 * their files are gone, and the page has to be loaded anew. That happens by itself, once. */
const KEY = "tidemill.reloaded";
const PATIENCE_MS = 15_000;

function isRecent(): boolean {
  try {
    return Date.now() - Number(window.sessionStorage.getItem(KEY) ?? 0) < PATIENCE_MS;
  } catch {
    return true;
  }
}

/** Load a part; where its file is gone, load the page with the newer one. */
export async function fresh<T>(load: () => Promise<T>): Promise<T> {
  try {
    return await load();
  } catch (error) {
    if (isRecent()) throw error;
    window.sessionStorage.setItem(KEY, String(Date.now()));
    window.location.reload();
    return new Promise<T>(() => {});
  }
}
