/** Deletion of a person's data: count what is stored under a key or tag, confirm, and show the report. */
import { type FormEvent, useState } from "react";
import { post } from "../../api/client";
import type { DataForgotten } from "../../api/types";
import { useAction } from "../../api/use-action";
import { Button } from "../../components/button";
import { Confirm } from "../../components/dialog";
import { ErrorMessage } from "../../components/feedback";
import { count } from "../../components/format";
import { Panel } from "../../components/layout";
import { num, Table } from "../../components/lists/table";

type Kind = "key" | "tag";

interface Selection {
  kind: Kind;
  text: string;
}

const WHAT = { key: "all data under a key", tag: "the jobs with a tag" } as const;

export function Forget() {
  const [kind, setKind] = useState<Kind>("key");
  const [text, setText] = useState("");
  const [found, setFound] = useState<{ of: Selection; report: DataForgotten } | null>(null);
  const [confirming, setConfirming] = useState(false);
  const request = ({ kind, text }: Selection, isPreview: boolean) => post<DataForgotten>("/forget", { [kind]: text, dry_run: isPreview });
  const preview = useAction<Selection, DataForgotten>({ request: (of) => request(of, true), onSuccess: (report, of) => setFound({ of, report }) });
  const forget = useAction<Selection, DataForgotten>({
    request: (of) => request(of, false),
    message: (report) => `Deleted ${rowsOf(report)}.`,
    onSuccess: (report, of) => {
      setFound({ of, report });
      setConfirming(false);
    },
  });
  const submit = (event: FormEvent) => {
    event.preventDefault();
    preview.mutate({ kind, text });
  };
  const isPreview = found?.report.dry_run === true;
  return (
    <Panel title="Delete a person's data" aside={<span className="faint">cannot be undone</span>}>
      <form className="forget pad" onSubmit={submit}>
        <label>
          <span>Delete</span>
          <select className="select" aria-label="What to delete" value={kind} onChange={(event) => setKind(event.target.value as Kind)}>
            <option value="key">{WHAT.key}</option>
            <option value="tag">{WHAT.tag}</option>
          </select>
        </label>
        <label>
          <span>{kind === "key" ? "Key" : "Tag"}</span>
          <input className="field" value={text} onChange={(event) => setText(event.target.value)} required maxLength={1000} placeholder={kind === "key" ? "customer-17" : "customer:17"} />
        </label>
        <Button type="submit" busy={preview.isPending}>
          Count
        </Button>
      </form>
      {preview.error && <ErrorMessage error={preview.error} />}
      {found && (
        <>
          <Table label={isPreview ? "What would be deleted" : "What was deleted"} heads={["Data", num(isPreview ? "Would be deleted" : "Deleted"), num("Left", "unfinished work still needs it")]}>
            {namesIn(found.report).map((name) => (
              <tr key={name}>
                <td>{name}</td>
                <td className="num">{count(found.report.removed[name] ?? 0)}</td>
                <td className="num">{count(found.report.left[name] ?? 0)}</td>
              </tr>
            ))}
          </Table>
          <div className="card-foot">
            <span>
              {isPreview ? "Nothing is deleted yet: " : "Deleted: "}
              {rowsOf(found.report)} of {found.of.kind} <b className="mono">{found.of.text}</b>.{sum(found.report.left) > 0 && " What is left is in use: let it end or cancel it, then repeat this."}
            </span>
            {isPreview && sum(found.report.removed) > 0 && (
              <Button kind="danger" className="small" onClick={() => setConfirming(true)}>
                Delete {rowsOf(found.report)}
              </Button>
            )}
          </div>
        </>
      )}
      {found && confirming && (
        <Confirm title={`Delete ${rowsOf(found.report)} for good?`} verb="Delete" act={() => forget.mutateAsync(found.of)} onClose={() => setConfirming(false)}>
          This deletes {WHAT[found.of.kind]}: <b className="mono">{found.of.text}</b>. It cannot be undone. The audit log names a hash of it.
        </Confirm>
      )}
    </Panel>
  );
}

function namesIn({ removed, left }: DataForgotten): string[] {
  return [...new Set([...Object.keys(removed), ...Object.keys(left)])];
}

function sum(rows: Record<string, number>): number {
  return Object.values(rows).reduce((total, each) => total + each, 0);
}

function rowsOf({ removed }: DataForgotten): string {
  const total = sum(removed);
  return `${count(total)} ${total === 1 ? "row" : "rows"}`;
}
