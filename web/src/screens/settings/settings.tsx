/** Settings: retention, deletion of data, theme and information about this server. */
import { useQuery } from "@tanstack/react-query";
import { type FormEvent, useState } from "react";
import { get, put } from "../../api/client";
import { useAction } from "../../api/use-action";
import { useMay, useSession } from "../../app/session";
import { chooseTheme, type ThemeChoice, themeChoice, useTheme } from "../../app/theme";
import { Button } from "../../components/button";
import { LoadStatus } from "../../components/feedback";
import { bytes } from "../../components/format";
import { Chips } from "../../components/forms/filters";
import { Fact, PageHeader, Panel } from "../../components/layout";
import { num, Table } from "../../components/lists/table";
import { Ago, timeZone } from "../../components/times";
import { Forget } from "./forget";
import "./settings.css";

export function Settings() {
  const session = useSession();
  const admin = useMay("admin");
  useTheme();
  return (
    <>
      <PageHeader title="Settings" />
      <div className="columns">
        <div className="stack">
          <Retention may={admin} />
          {admin && <Forget />}
        </div>
        <div className="stack">
          <Panel title="Theme">
            <div className="pad">
              <Chips label="Theme" options={[{ value: "system", label: "system" }, { value: "light" }, { value: "dark" }]} value={[themeChoice()]} onChange={(next) => chooseTheme((next.at(-1) ?? themeChoice()) as ThemeChoice)} />
            </div>
          </Panel>
          <Panel title="About">
            <dl className="facts">
              <Fact name="Application">{session.application}</Fact>
              <Fact name="Version">{session.version}</Fact>
              <Fact name="User">{session.name}</Fact>
              <Fact name="Role">{session.role}</Fact>
              <Fact name="Login">{session.login_required ? "required" : "not required: only this machine can reach the server"}</Fact>
              <Fact name="Time zone">{timeZone()}, that of this browser</Fact>
              <Fact name="Changes">{session.read_only ? "refused: the server is read-only" : "allowed"}</Fact>
              <Fact name="API">
                <a href="/api/v1/schema/openapi.json">OpenAPI document</a>
              </Fact>
            </dl>
          </Panel>
          <Panel title="Keyboard shortcuts">
            <dl className="facts">
              <Fact name="Search">
                <kbd>Ctrl K</kbd> or <kbd>/</kbd>
              </Fact>
              <Fact name="Open a screen">
                <kbd>g</kbd> and a letter: <kbd>h</kbd> home, <kbd>r</kbd> runs, <kbd>j</kbd> jobs, <kbd>i</kbd> human input, <kbd>q</kbd> queues, <kbd>w</kbd> workers; <kbd>Ctrl K</kbd> lists them all
              </Fact>
              <Fact name="In lists">
                <kbd>j</kbd> <kbd>k</kbd> move, <kbd>x</kbd> select, <kbd>↵</kbd> open
              </Fact>
            </dl>
          </Panel>
        </div>
      </div>
    </>
  );
}

interface RetainedKind {
  days: number;
  set: number | null;
  bytes: number;
  oldest: string | null;
}

interface RetentionSettings {
  jobs: RetainedKind;
  runs: RetainedKind;
  events: RetainedKind;
  configured: number;
  set_by: string | null;
  set_at: string | null;
}

const KINDS = [
  { name: "jobs", label: "Finished jobs and their logs" },
  { name: "runs", label: "Finished runs" },
  { name: "events", label: "Event log" },
] as const;

/** How long data is stored; an empty field means the configured default. */
function Retention({ may }: { may: boolean }) {
  const [edited, setEdited] = useState<Record<string, string>>({});
  const found = useQuery({ queryKey: ["retention"], queryFn: () => get<RetentionSettings>("/retention") });
  const save = useAction<Record<string, number | null>>({
    request: (days) => put("/retention", days),
    message: () => "Saved. Older data is deleted with the next maintenance run.",
    onSuccess: () => setEdited({}),
  });
  const stored = found.data;
  const wanted = (name: (typeof KINDS)[number]["name"]): number | null => {
    const text = edited[name];
    if (text === undefined) return stored?.[name].set ?? null;
    return text.trim() === "" ? null : Number(text);
  };
  const isInvalid = KINDS.some(({ name }) => { const days = wanted(name); return days !== null && !(Number.isInteger(days) && days >= 1 && days <= 3650); });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    save.mutate(Object.fromEntries(KINDS.map(({ name }) => [name, wanted(name)])));
  };
  return (
    <Panel title="Retention" aside={stored?.set_by && <span className="faint">set by {stored.set_by} <Ago at={stored.set_at} /></span>}>
      <LoadStatus query={found} />
      {stored && (
        <form onSubmit={submit}>
          <Table label="Retention" heads={["Data", "Stored for", num("Size"), "Oldest"]}>
            {KINDS.map(({ name, label }) => (
              <tr key={name}>
                <td>{label}</td>
                <td className="nowrap">
                  {may ? (
                    <>
                      <input className="field days" inputMode="numeric" aria-label={`Days to store: ${label}`} placeholder={String(stored.configured)} value={edited[name] ?? (stored[name].set === null ? "" : String(stored[name].set))} onChange={(event) => setEdited({ ...edited, [name]: event.target.value })} /> days
                    </>
                  ) : (
                    `${stored[name].days} days`
                  )}{" "}
                  {stored[name].set === null && <span className="faint">default</span>}
                </td>
                <td className="num nowrap">{bytes(stored[name].bytes)}</td>
                <td className="nowrap">{stored[name].oldest ?? <span className="faint">–</span>}</td>
              </tr>
            ))}
          </Table>
          {may && Object.keys(edited).length > 0 && (
            <div className="card-foot">
              <span>{isInvalid ? "Enter whole days from 1 to 3650, or leave the field empty for the default." : "Older data is deleted permanently within a minute."}</span>
              <span className="row">
                <Button className="small" onClick={() => setEdited({})}>
                  Discard
                </Button>
                <Button kind="danger" className="small" type="submit" busy={save.isPending} disabled={isInvalid}>
                  Save
                </Button>
              </span>
            </div>
          )}
        </form>
      )}
    </Panel>
  );
}
