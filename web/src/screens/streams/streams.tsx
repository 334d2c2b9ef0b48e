/** Streams: their sources and dead letters. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, post } from "../../api/client";
import type { List } from "../../api/types";
import { useAction } from "../../api/use-action";
import { go } from "../../app/router";
import { useMay } from "../../app/session";
import { Button } from "../../components/button";
import { Empty, LoadStatus } from "../../components/feedback";
import { PageHeader, Panel } from "../../components/layout";
import { DeadLetters } from "./dead-letters";
import { messageUrl } from "./message-page";
import { StreamPanel } from "./stream-panel";
import type { Stream, StreamControl } from "./types";

export function Streams() {
  const may = useMay("operator");
  const found = useQuery({ queryKey: ["streams"], queryFn: () => get<List<Stream>>("/streams"), refetchInterval: 15_000 });
  const change = useAction<StreamControl>({
    request: ({ stream, ...control }) => post(`/streams/${encodeURIComponent(stream)}/control`, control),
    message: (_, control) => controlMessage(control),
  });
  return (
    <>
      <PageHeader title="Streams" subtitle="Message rate and lag of each source, what waits for each sink, and dead letters.">
        <FindMessage />
      </PageHeader>
      <LoadStatus query={found} />
      {found.data?.items.length === 0 && (
        <Panel>
          <Empty title="No streams yet">
            Declare one with <code>app.stream(Stream("posts", sources=[…], plans=[…]))</code> and start it with <code>tidemill up</code>.
          </Empty>
        </Panel>
      )}
      <div className="stack">
        {found.data?.items.map((stream) => (
          <StreamPanel key={stream.name} stream={stream} may={may} onControl={(control) => change.mutateAsync(control).catch(() => undefined)} />
        ))}
        {found.data && found.data.items.length > 0 && <DeadLetters may={may} streams={found.data.items.map((stream) => stream.name)} />}
      </div>
    </>
  );
}

/** Opens the page of a message. */
function FindMessage() {
  const [id, setId] = useState("");
  const submit = (event: FormEvent) => {
    event.preventDefault();
    if (id.trim()) go(messageUrl(id.trim()));
  };
  return (
    <form className="row" role="search" onSubmit={submit}>
      <input className="field" size={28} value={id} onChange={(event) => setId(event.target.value)} placeholder="STREAM/SOURCE:POSITION or id" aria-label="Message" />
      <Button type="submit" disabled={!id.trim()}>
        Explain message
      </Button>
    </form>
  );
}

function controlMessage({ stream, source, mode, weight, max_qps, enabled }: StreamControl): string {
  const target = source ? `source ${source} of ${stream}` : `stream ${stream}`;
  if (mode) return mode === "drain" ? `Draining ${target}: running messages finish, no new ones start.` : `Resumed ${target}.`;
  if (enabled !== undefined) return `${enabled ? "Enabled" : "Disabled"} ${source} of ${stream}.`;
  if (weight !== undefined) return `Set the weight of ${target} to ${weight}.`;
  return max_qps ? `Limited ${target} to ${max_qps} messages per second.` : `Removed the limit of ${target}.`;
}
