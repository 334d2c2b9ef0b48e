import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The bundle goes into the Python package, where the server finds it; it is never committed.
export default defineConfig({
  plugins: [react()],
  build: {
    outDir: "../tidemill/server/static",
    emptyOutDir: true,
    target: "es2022",
    assetsInlineLimit: 0,
    modulePreload: { polyfill: false },
    chunkSizeWarningLimit: 400,
  },
  server: { proxy: { "/api": "http://127.0.0.1:7433" } },
});
