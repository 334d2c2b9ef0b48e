/** A long list as a screen: rows to choose by mouse or key, what to do with the chosen ones, and what an empty list says. */
import { type ReactNode, useMemo } from "react";
import { go } from "../router";
import { MoreRows, useChosen, usePages, useRowKeys } from "./lists";
import { type Heading, Table } from "./table";
import { Button, count, Empty, Loading, Panel, Trouble } from "./ui";

export interface Column<T> extends Heading {
  cell: (row: T) => ReactNode;
}

interface ListingProps<T> {
  /** What the rows are, as in `jobs`; also the name under which they are kept, and where one of them is shown. */
  what: "jobs" | "runs";
  pages: ReturnType<typeof usePages<T>>;
  columns: Column<T>[];
  /** Whether rows may be chosen. */
  may: boolean;
  filtered: boolean;
  /** What to say when there is nothing at all. */
  empty: ReactNode;
  /** Buttons for what is chosen. */
  actions: (ids: number[], clear: () => void) => ReactNode;
}

export function Listing<T extends { id: number }>({ what, pages, columns, may, filtered, empty, actions }: ListingProps<T>) {
  const ids = useMemo(() => pages.rows.map((row) => row.id), [pages.rows]);
  const chosen = useChosen(ids);
  const one = what.slice(0, -1);
  const at = useRowKeys(ids, (id) => go(`/${what}/${id}`), may ? chosen.toggle : () => {});
  return (
    <>
      {pages.error && <Trouble error={pages.error} retry={() => void pages.refetch()} />}
      <Panel>
        {pages.isPending ? (
          <Loading lines={10} />
        ) : pages.rows.length === 0 ? (
          filtered ? (
            <Empty title={`No ${one} matches`}>
              <Button kind="quiet" onClick={() => go(`/${what}`)}>
                Show all {what}
              </Button>
            </Empty>
          ) : (
            <Empty title={`No ${what} yet`}>{empty}</Empty>
          )
        ) : (
          <Table label={`${what[0]?.toUpperCase()}${what.slice(1)}`} heads={[...(may ? [{ name: "", shown: <input type="checkbox" aria-label="Choose all" checked={chosen.all} onChange={chosen.toggleAll} /> }] : []), ...columns]}>
            {pages.rows.map((row) => (
              <tr key={row.id} data-row={row.id} aria-selected={at === row.id || chosen.has(row.id)}>
                {may && (
                  <td className="choose">
                    <input type="checkbox" aria-label={`Choose ${one} ${row.id}`} checked={chosen.has(row.id)} onChange={() => chosen.toggle(row.id)} />
                  </td>
                )}
                {columns.map((column) => (
                  <td key={column.name} className={column.kind}>
                    {column.cell(row)}
                  </td>
                ))}
              </tr>
            ))}
          </Table>
        )}
        <MoreRows pages={pages} />
      </Panel>
      {chosen.ids.length > 0 && (
        <div className="bulk" role="toolbar" aria-label={`Chosen ${what}`}>
          <b>{count(chosen.ids.length)} chosen</b>
          {actions(chosen.ids, chosen.clear)}
          <Button kind="quiet" onClick={chosen.clear}>
            Forget the choice
          </Button>
        </div>
      )}
    </>
  );
}

/** A note that is cut where it is long, and whole on hover. */
export function Note({ children, title }: { children: ReactNode; title: string }) {
  return (
    <div className="cut note" title={title}>
      {children}
    </div>
  );
}
