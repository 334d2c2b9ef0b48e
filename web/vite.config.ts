import react from "@vitejs/plugin-react";
import { defineConfig } from "vite";

// The bundle is written into the Python package, where the server reads it; it is not committed.
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
