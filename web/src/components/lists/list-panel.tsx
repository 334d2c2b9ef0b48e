/** A long list with selectable rows, bulk actions and an empty state. */
import { type ReactNode, useMemo } from "react";
import { go } from "../../app/router";
import { Button } from "../button";
import { Empty, LoadStatus } from "../feedback";
import { count } from "../format";
import { Panel } from "../layout";
import { MoreRows, usePages } from "./paging";
import { useRowKeys, useSelection } from "./selection";
import { type Heading, Table } from "./table";

export interface Column<T> extends Heading {
  cell: (row: T) => ReactNode;
}

interface ListPanelProps<T> {
  /** What the rows are; also the path of their screens. */
  what: "jobs" | "runs" | "batches";
  pages: ReturnType<typeof usePages<T>>;
  columns: Column<T>[];
  /** Whether rows can be selected. */
  may: boolean;
  filtered: boolean;
  /** Shown when there is nothing at all. */
  empty: ReactNode;
  /** Buttons for the selected rows. */
  actions: (ids: number[], clear: () => void) => ReactNode;
}

export function ListPanel<T extends { id: number }>({ what, pages, columns, may, filtered, empty, actions }: ListPanelProps<T>) {
  const ids = useMemo(() => pages.rows.map((row) => row.id), [pages.rows]);
  const selection = useSelection(ids);
  const one = what === "batches" ? "batch" : what.slice(0, -1);
  const at = useRowKeys(ids, (id) => go(`/${what}/${id}`), may ? selection.toggle : () => {});
  return (
    <>
      <LoadStatus query={pages} lines={10} />
      {pages.data && <Panel>
        {pages.rows.length === 0 ? (
          filtered ? (
            <Empty title={`No ${what} match these filters`}>
              <Button kind="quiet" onClick={() => go(`/${what}`)}>
                Clear the filters
              </Button>
            </Empty>
          ) : (
            <Empty title={`No ${what} yet`}>{empty}</Empty>
          )
        ) : (
          <Table label={`${what[0]?.toUpperCase()}${what.slice(1)}`} heads={[...(may ? [{ name: "", shown: <input type="checkbox" aria-label="Select all" checked={selection.all} onChange={selection.toggleAll} /> }] : []), ...columns]}>
            {pages.rows.map((row) => (
              <tr key={row.id} data-row={row.id} aria-selected={at === row.id || selection.has(row.id)}>
                {may && (
                  <td className="choose">
                    <input type="checkbox" aria-label={`Select ${one} ${row.id}`} checked={selection.has(row.id)} onChange={() => selection.toggle(row.id)} />
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
      </Panel>}
      {selection.ids.length > 0 && (
        <div className="bulk" role="toolbar" aria-label={`Selected ${what}`}>
          <b>{count(selection.ids.length)} selected</b>
          {actions(selection.ids, selection.clear)}
          <Button kind="quiet" onClick={selection.clear}>
            Clear selection
          </Button>
        </div>
      )}
    </>
  );
}

/** A note in one line, complete on hover. */
export function Note({ children, title }: { children: ReactNode; title: string }) {
  return (
    <div className="cut note" title={title}>
      {children}
    </div>
  );
}
