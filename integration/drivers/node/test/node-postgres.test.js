// node-postgres (simple and extended protocol, named statements, portals) through the shim.

import assert from 'node:assert/strict'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { after, before, beforeEach, test } from 'node:test'

import pg from 'pg'
import { from as copyFrom, to as copyTo } from 'pg-copy-streams'
import Cursor from 'pg-cursor'
import QueryStream from 'pg-query-stream'

import { CROWD, DEADLINE_MS, SMALL_USER, eventually, range } from './place.js'

const limits = { timeout: DEADLINE_MS * 2 }
let client

async function connect(options = {}) {
  const connection = new pg.Client(options)
  await connection.connect()
  return connection
}

const value = async (query, values) => Object.values((await client.query(query, values)).rows[0])[0]

before(async () => {
  client = await connect()
  await client.query('DROP TABLE IF EXISTS node_items')
  await client.query('CREATE TABLE node_items (id int PRIMARY KEY, name text)')
})

beforeEach(() => client.query('TRUNCATE node_items'), limits)

after(async () => {
  await client.query('DROP TABLE node_items')
  await client.end()
})

test('types in text', limits, async () => {
  const moment = new Date('2026-02-28T23:59:59.999Z')
  const { rows, fields } = await client.query(
    `SELECT $1::int AS i, $2::bigint AS b, $3::float8 AS f, $4::bool AS t, $5::text AS n,
            $6::text AS s, $7::bytea AS y, $8::timestamptz AS m, $9::int[] AS a, $10::jsonb AS j`,
    [1, '9223372036854775807', 1.5, true, null, "ü\t'\\", Buffer.from([0, 255]), moment,
      [1, 2, 3], { a: [1, null] }],
  )
  assert.deepEqual(rows[0], {
    i: 1, b: '9223372036854775807', f: 1.5, t: true, n: null, s: "ü\t'\\",
    y: Buffer.from([0, 255]), m: moment, a: [1, 2, 3], j: { a: [1, null] },
  })
  assert.deepEqual(fields.map((f) => f.dataTypeID),
    [23, 20, 701, 16, 25, 25, 17, 1184, 1007, 3802])
})

test('types in binary', limits, async () => {
  // Values whose bytes are UTF-8: the driver decodes others wrongly, without the shim as well.
  const { rows, fields } = await client.query({
    text: 'SELECT $1::int AS i, $2::float8 AS f, $3::bool AS t, $4::text AS s',
    values: [7, 2, false, 'text'],
    binary: true,
  })
  assert.deepEqual(rows[0], { i: 7, f: 2, t: false, s: 'text' })
  assert.deepEqual(fields.map((f) => f.format), ['binary', 'binary', 'binary', 'binary'])
})

test('a named statement is prepared once and run often', limits, async () => {
  const query = { name: 'node twice', text: 'SELECT $1::int * 2 AS twice' }
  for (const n of range(50)) {
    const { rows } = await client.query({ ...query, values: [n] })
    assert.equal(rows[0].twice, n * 2)
    if (n % 10 === 0) await client.query('SELECT 1')
  }
})

test('a named statement whose parse failed can be prepared again', limits, async () => {
  const query = { name: 'node later', text: 'SELECT count(*)::int AS n FROM node_later' }
  await assert.rejects(client.query(query), { code: '42P01' })
  await client.query('CREATE TABLE node_later (id int)')
  assert.equal((await client.query(query)).rows[0].n, 0)
  await client.query('DROP TABLE node_later')
})

test('queries queued at once are answered in order', limits, async () => {
  const answers = await Promise.all(
    range(200).map((n) => client.query('SELECT $1::int AS n', [n])),
  )
  assert.deepEqual(answers.map((a) => a.rows[0].n), range(200))
})

test('several statements in one query give several results', limits, async () => {
  const results = await client.query(
    "INSERT INTO node_items VALUES (1, 'a'); SELECT * FROM node_items; DELETE FROM node_items",
  )
  assert.deepEqual(results.map((r) => [r.command, r.rowCount]),
    [['INSERT', 1], ['SELECT', 1], ['DELETE', 1]])
  await assert.rejects(
    client.query("INSERT INTO node_items VALUES (1, 'a'); SELECT 1/0"), { code: '22012' })
  assert.equal(await value('SELECT count(*)::int FROM node_items'), 0)
})

test('transactions with savepoints', limits, async () => {
  await client.query('BEGIN')
  await client.query('INSERT INTO node_items VALUES ($1, $2)', [1, 'outer'])
  await client.query('SAVEPOINT a')
  await assert.rejects(
    client.query('INSERT INTO node_items VALUES ($1, $2)', [1, 'again']), { code: '23505' })
  await assert.rejects(client.query('SELECT 1'), { code: '25P02' })
  await client.query('ROLLBACK TO SAVEPOINT a')
  await client.query('INSERT INTO node_items VALUES ($1, $2)', [2, 'after'])
  await client.query('COMMIT')
  assert.deepEqual(await value('SELECT array_agg(id ORDER BY id) FROM node_items'), [1, 2])
  await client.query('BEGIN')
  await assert.rejects(client.query('SELECT 1/0'), { code: '22012' })
  assert.equal((await client.query('COMMIT')).command, 'ROLLBACK')
})

test('copy in and out', limits, async () => {
  const lines = range(10_000).map((n) => `${n}\tname ${n}\n`)
  const into = client.query(copyFrom('COPY node_items FROM STDIN'))
  await pipeline(Readable.from(lines), into)
  assert.equal(into.rowCount, 10_000)
  const out = client.query(copyTo('COPY (SELECT * FROM node_items ORDER BY id) TO STDOUT'))
  const chunks = []
  for await (const chunk of out) chunks.push(chunk)
  assert.equal(Buffer.concat(chunks).toString(), lines.join(''))
})

test('a copy in binary', limits, async () => {
  const out = client.query(copyTo(
    "COPY (SELECT n, 'b' || n FROM generate_series(1, 1000) n) TO STDOUT (FORMAT binary)"))
  const chunks = []
  for await (const chunk of out) chunks.push(chunk)
  await pipeline(Readable.from(chunks),
    client.query(copyFrom('COPY node_items FROM STDIN (FORMAT binary)')))
  assert.equal(await value('SELECT count(*)::int FROM node_items'), 1000)
})

test('a copy aborted by either side', limits, async () => {
  await assert.rejects(
    pipeline(Readable.from(['1\ta\n', 'x\tb\n']),
      client.query(copyFrom('COPY node_items FROM STDIN'))),
    { code: '22P02' })
  const broken = async function* () {
    yield '1\ta\n'
    throw new Error('the file is gone')
  }
  await assert.rejects(
    pipeline(Readable.from(broken()), client.query(copyFrom('COPY node_items FROM STDIN'))),
    /the file is gone/)
  assert.equal(await value('SELECT count(*)::int FROM node_items'), 0)
})

test('cursors and streams are portals with row limits', limits, async () => {
  await client.query('BEGIN')
  const cursor = client.query(new Cursor('SELECT n FROM generate_series(1, $1::int) n', [100]))
  assert.deepEqual((await cursor.read(3)).map((r) => r.n), [1, 2, 3])
  assert.deepEqual((await cursor.read(2)).map((r) => r.n), [4, 5])
  await cursor.close()
  await client.query('COMMIT')
  const seen = []
  const stream = client.query(
    new QueryStream('SELECT n FROM generate_series(1, $1::int) n', [1000], { batchSize: 7 }))
  for await (const row of stream) seen.push(row.n)
  assert.deepEqual(seen, range(1000).map((n) => n + 1))
  const declared = await client.query(
    'BEGIN; DECLARE c CURSOR FOR SELECT generate_series(1, 9); FETCH 4 FROM c; COMMIT')
  assert.equal(declared[2].rowCount, 4)
})

test('a stream that is destroyed leaves the connection usable', limits, async () => {
  const stream = client.query(new QueryStream('SELECT generate_series(1, 1000000) AS n'))
  for await (const row of stream) {
    if (row.n === 10) break
  }
  assert.equal(await value('SELECT 1 AS one'), 1)
})

test('errors have all their fields', limits, async () => {
  await client.query("INSERT INTO node_items VALUES (1, 'a')")
  await assert.rejects(client.query('INSERT INTO node_items VALUES ($1, $2)', [1, 'b']), {
    severity: 'ERROR',
    code: '23505',
    detail: 'Key (id)=(1) already exists.',
    schema: 'public',
    table: 'node_items',
    constraint: 'node_items_pkey',
    routine: '_bt_check_unique',
  })
  await assert.rejects(client.query('SELECT nam FROM node_items'), (error) => {
    assert.equal(error.position, '8')
    assert.match(error.hint, /node_items\.name/)
    return true
  })
})

test('notices arrive in order', limits, async () => {
  const got = []
  const listen = (notice) => got.push([notice.severity, notice.message])
  client.on('notice', listen)
  await client.query("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
  client.off('notice', listen)
  assert.deepEqual(got, [['NOTICE', 'one'], ['WARNING', 'two']])
})

test('notifications arrive after their commit', limits, async () => {
  const listener = await connect()
  const got = []
  listener.on('notification', ({ channel, payload }) => got.push([channel, payload]))
  await listener.query('LISTEN node_news')
  await client.query("BEGIN; NOTIFY node_news, 'rolled back'; ROLLBACK")
  await client.query('SELECT pg_notify($1, $2)', ['node_news', 'first'])
  await client.query("NOTIFY node_news, 'second'")
  await eventually(() => got.length >= 2)
  assert.deepEqual(got, [['node_news', 'first'], ['node_news', 'second']])
  assert.equal((await listener.query('SELECT 1 AS one')).rows[0].one, 1)
  await listener.end()
})

test('cancel ends the query', limits, async () => {
  const victim = await connect()
  const other = await connect()
  const sleeping = victim.query('SELECT pg_sleep(60)').catch((error) => error)
  const bystander = other.query('SELECT 7 AS seven FROM pg_sleep(2)')
  let ended = false
  sleeping.then(() => { ended = true })
  // The driver's own request, on a connection of its own, until it has come after the query.
  await eventually(async () => {
    const canceller = new pg.Client()
    const stream = canceller.connection
    await new Promise((resolve) => {
      stream.on('connect', () => stream.cancel(victim.processID, victim.secretKey))
      stream.on('error', resolve)
      stream.on('end', resolve)
      stream.connect(canceller.port, canceller.host)
    })
    return ended
  })
  assert.equal((await sleeping).code, '57014')
  assert.equal((await bystander).rows[0].seven, 7)
  assert.equal((await victim.query('SELECT 1 AS one')).rows[0].one, 1)
  await victim.end()
  await other.end()
})

test('settings follow their client', limits, async () => {
  const first = await connect({ options: '-c work_mem=9MB', application_name: 'node first' })
  await client.query("SET work_mem = '7MB'")
  for (const _ of range(10)) {
    assert.equal((await client.query('SHOW work_mem')).rows[0].work_mem, '7MB')
    assert.equal((await first.query('SHOW work_mem')).rows[0].work_mem, '9MB')
  }
  assert.equal(
    (await first.query('SHOW application_name')).rows[0].application_name, 'node first')
  await client.query('RESET work_mem')
  await first.end()
})

test('many connections on a small pool', limits, async () => {
  const pool = new pg.Pool({ user: SMALL_USER, max: CROWD })
  await Promise.all(range(CROWD).map(async (number) => {
    const connection = await pool.connect()
    try {
      for (const step of range(10)) {
        const asked = number * 1000 + step
        await connection.query('BEGIN')
        const { rows } = await connection.query({
          name: 'asked', text: 'SELECT $1::int AS asked, $2::text AS number',
          values: [asked, String(number)],
        })
        assert.deepEqual(rows, [{ asked, number: String(number) }])
        await connection.query('COMMIT')
      }
    } finally {
      connection.release()
    }
  }))
  await pool.end()
})
