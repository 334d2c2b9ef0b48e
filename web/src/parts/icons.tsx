/** The few pictures of the navigation, drawn with one pen. */
const PATHS: Record<string, string> = {
  home: "M2.500 7.500 8 3l5.500 4.500V13a.5.5 0 0 1-.5.5H9.500v-4h-3v4H3a.5.5 0 0 1-.5-.5z",
  runs: "M3 4h4M3 8h10M7 12h6M10.500 4H13M3 12h1",
  jobs: "M3 3.500h10v9H3zM3 6.500h10M6 9.500h4",
  inputs: "M8 8a2.700 2.700 0 1 0 0-5.400A2.700 2.700 0 0 0 8 8zM3 13.500c.5-2.600 2.500-4 5-4s4.500 1.400 5 4",
  queues: "M2.500 4h11M2.500 8h8M2.500 12h5",
  schedules: "M8 14A6 6 0 1 0 8 2a6 6 0 0 0 0 12zM8 4.800V8l2.200 1.500",
  workers: "M3 3h10v4H3zM3 9h10v4H3zM5.500 5h.01M5.500 11h.01",
  streams: "M1.500 5c2-2 4-2 6 0s4 2 7 0M1.500 11c2-2 4-2 6 0s4 2 7 0",
  states: "M2.500 2.500h4.500v4.500H2.500zM9 2.500h4.500v4.500H9zM2.500 9h4.500v4.500H2.500zM9 9h4.500v4.500H9z",
  monitors: "M1.500 8.500h3l2-5 3 9 2-4h3",
  editor: "M3 3h4v3H3zM9 10h4v3H9zM5 6v5.500h4",
  page: "M4 2.500h5.500l2.500 2.500v8.500H4zM9.500 2.500V5H12M6 8h4M6 10.500h4",
  audit: "M4 2.500h8v11H4zM6 5.500h4M6 8h4M6 10.500h2.500",
  settings: "M8 10.200a2.200 2.200 0 1 0 0-4.400 2.200 2.200 0 0 0 0 4.400zM8 2v1.600M8 12.400V14M2 8h1.600M12.400 8H14M3.800 3.800l1.100 1.100M11.100 11.100l1.100 1.100M12.200 3.800l-1.100 1.100M4.900 11.100l-1.100 1.100",
  search: "M7 12A5 5 0 1 0 7 2a5 5 0 0 0 0 10zM10.700 10.700 14 14",
  sun: "M8 11a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM8 1.500v1.500M8 13v1.500M1.500 8H3M13 8h1.500M3.400 3.400l1 1M11.600 11.600l1 1M12.600 3.400l-1 1M4.400 11.600l-1 1",
  moon: "M13.500 9.500A6 6 0 0 1 6.500 2.500a6 6 0 1 0 7 7z",
  menu: "M2.500 4.500h11M2.500 8h11M2.500 11.500h11",
};

export function Icon({ name }: { name: string }) {
  return (
    <svg viewBox="0 0 16 16" aria-hidden="true">
      <path d={PATHS[name] ?? ""} />
    </svg>
  );
}
