"""A job that exists if and only if the order does: enqueue on your own open transaction.

Works the same with psycopg and SQLAlchemy connections; plain ones go to `app.enqueue_sync(..., conn=...)`.
"""

import asyncio

import asyncpg

from tidemill import App

app = App("orders")


@app.task
async def pack(order_id: int) -> str:
    return f"order {order_id} packed"


async def main() -> None:
    async with app.running():
        conn = await asyncpg.connect(app.database().dsn)
        await conn.execute("CREATE TABLE IF NOT EXISTS orders (id int PRIMARY KEY)")
        await conn.execute("TRUNCATE orders")

        async with conn.transaction():
            await conn.execute("INSERT INTO orders VALUES (1)")
            job = await app.enqueue(pack.call(order_id=1), conn=conn)
        print((await app.wait(job, timeout="10s")).result)

        try:
            async with conn.transaction():
                await conn.execute("INSERT INTO orders VALUES (2)")
                never = await app.enqueue(pack.call(order_id=2), conn=conn)
                raise RuntimeError("the customer has gone")
        except RuntimeError:
            orders = await conn.fetchval("SELECT count(*) FROM orders")
            jobs = await conn.fetchval("SELECT count(*) FROM tidemill.job WHERE id = $1", never.id)
            print(f"rolled back: {orders} order, {jobs} jobs")
        await conn.close()


if __name__ == "__main__":
    asyncio.run(main())
