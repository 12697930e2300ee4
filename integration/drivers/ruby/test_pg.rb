# The pg gem (libpq from Ruby) through the shim: `ruby test_pg.rb`.

require 'minitest/autorun'
require 'pg'

# Ruby's libpq reads PGHOST, PGPORT, PGUSER, PGPASSWORD and PGDATABASE itself.
class PgTest < Minitest::Test
  SMALL_USER = ENV.fetch('PGDOG_SMALL_USER', ENV['PGUSER'])
  # Clients at once on the small pool of three. In session mode a client keeps its server.
  CROWD = ENV['PGDOG_POOLER_MODE'] == 'session' ? 3 : 30
  # No test is about time: this is only how long a broken one may hang.
  DEADLINE_S = 60

  def setup
    @connection = PG.connect
    @connection.exec('SET client_min_messages = warning')
    @connection.exec('CREATE TABLE IF NOT EXISTS ruby_items (id int PRIMARY KEY, name text)')
    @connection.exec('TRUNCATE ruby_items')
  end

  def teardown
    @connection.close unless @connection.finished?
  end

  def value(query, values = [])
    @connection.exec_params(query, values).getvalue(0, 0)
  end

  def test_types_in_text_and_binary
    text = @connection.exec_params('SELECT $1::int, $2::text, $3::bytea',
                                   [7, "\u00fc\t'\\", { value: "\x00\xff".b, format: 1 }])
    assert_equal ['7', "\u00fc\t'\\", '\\x00ff'], text.values[0]
    binary = @connection.exec_params('SELECT $1::int, $2::bytea',
                                     [{ value: [7].pack('N'), format: 1, type: 23 },
                                      { value: "\x00\xff".b, format: 1 }], 1)
    assert_equal [[7].pack('N'), "\x00\xff".b], binary.values[0]
    assert_equal [23, 17], [binary.ftype(0), binary.ftype(1)]
  end

  def test_values_by_type_map
    @connection.type_map_for_results = PG::BasicTypeMapForResults.new(@connection)
    row = @connection.exec("SELECT 7, 1.5::float8, true, NULL, ARRAY[1, 2], 'x'").values[0]
    assert_equal [7, 1.5, true, nil, [1, 2], 'x'], row
  end

  def test_prepared_statements
    @connection.prepare('twice', 'SELECT $1::int * 2')
    50.times do |n|
      assert_equal (n * 2).to_s, @connection.exec_prepared('twice', [n]).getvalue(0, 0)
    end
    described = @connection.describe_prepared('twice')
    assert_equal [1, 23, 23], [described.nparams, described.paramtype(0), described.ftype(0)]
    assert_raises(PG::DuplicatePstatement) { @connection.prepare('twice', 'SELECT 1') }
    @connection.exec('DEALLOCATE twice')
    assert_raises(PG::InvalidSqlStatementName) { @connection.exec_prepared('twice', [1]) }
  end

  def test_a_pipeline_keeps_its_order_and_skips_to_its_sync
    @connection.enter_pipeline_mode
    20.times { |n| @connection.send_query_params('SELECT $1::int', [n]) }
    @connection.send_query_params('SELECT 1/0', [])
    @connection.send_query_params('SELECT 99', [])
    @connection.pipeline_sync
    got = 20.times.map do
      one = @connection.get_result.getvalue(0, 0).to_i
      assert_nil @connection.get_result
      one
    end
    assert_equal (0...20).to_a, got
    assert_raises(PG::DivisionByZero) { @connection.get_result.check }
    assert_nil @connection.get_result
    assert_equal PG::PGRES_PIPELINE_ABORTED, @connection.get_result.result_status
    assert_nil @connection.get_result
    assert_equal PG::PGRES_PIPELINE_SYNC, @connection.get_result.result_status
    @connection.exit_pipeline_mode
    assert_equal '1', value('SELECT 1')
  end

  def test_transactions_with_savepoints
    @connection.transaction do |c|
      c.exec("INSERT INTO ruby_items VALUES (1, 'outer')")
      c.exec('SAVEPOINT a')
      assert_raises(PG::UniqueViolation) { c.exec("INSERT INTO ruby_items VALUES (1, 'again')") }
      assert_equal PG::PQTRANS_INERROR, c.transaction_status
      assert_raises(PG::InFailedSqlTransaction) { c.exec('SELECT 1') }
      c.exec('ROLLBACK TO SAVEPOINT a')
      c.exec("INSERT INTO ruby_items VALUES (2, 'after')")
    end
    assert_raises(ZeroDivisionError) do
      @connection.transaction do |c|
        c.exec("INSERT INTO ruby_items VALUES (3, 'lost')")
        raise ZeroDivisionError
      end
    end
    assert_equal '{1,2}', value('SELECT array_agg(id ORDER BY id) FROM ruby_items')
  end

  def test_several_statements_in_one_query
    @connection.send_query("INSERT INTO ruby_items VALUES (1, 'a'); SELECT 5; SELECT 1/0")
    assert_equal 'INSERT 0 1', @connection.get_result.cmd_status
    assert_equal '5', @connection.get_result.getvalue(0, 0)
    assert_raises(PG::DivisionByZero) { @connection.get_result.check }
    assert_nil @connection.get_result
    assert_equal '0', value('SELECT count(*) FROM ruby_items')
  end

  def test_copy_in_and_out
    lines = (0...10_000).map { |n| "#{n}\tname #{n}\n" }
    done = @connection.copy_data('COPY ruby_items FROM STDIN') do
      lines.each { |line| @connection.put_copy_data(line) }
    end
    assert_equal 10_000, done.cmd_tuples
    got = []
    @connection.copy_data('COPY (SELECT * FROM ruby_items ORDER BY id) TO STDOUT') do
      while (line = @connection.get_copy_data)
        got << line
      end
    end
    assert_equal lines, got
  end

  def test_a_copy_in_binary
    chunks = []
    rows = "SELECT n, repeat('b', n) FROM generate_series(0, 499) n"
    @connection.copy_data("COPY (#{rows}) TO STDOUT (FORMAT binary)") do
      while (chunk = @connection.get_copy_data)
        chunks << chunk
      end
    end
    @connection.copy_data('COPY ruby_items FROM STDIN (FORMAT binary)') do
      chunks.each { |chunk| @connection.put_copy_data(chunk) }
    end
    assert_equal '124750', value('SELECT sum(length(name)) FROM ruby_items')
  end

  def test_a_copy_aborted_by_either_side
    assert_raises(PG::InvalidTextRepresentation) do
      @connection.copy_data('COPY ruby_items FROM STDIN') do
        @connection.put_copy_data("1\ta\nx\tb\n")
      end
    end
    assert_raises(ZeroDivisionError) do
      @connection.copy_data('COPY ruby_items FROM STDIN') do
        @connection.put_copy_data("1\ta\n")
        raise ZeroDivisionError
      end
    end
    assert_equal '0', value('SELECT count(*) FROM ruby_items')
  end

  def test_cursors
    @connection.transaction do |c|
      c.exec('DECLARE steps SCROLL CURSOR FOR SELECT generate_series(1, 50)')
      assert_equal [['1'], ['2']], c.exec('FETCH 2 FROM steps').values
      assert_equal [['1']], c.exec('FETCH BACKWARD 1 FROM steps').values
    end
  end

  def test_rows_one_by_one
    @connection.send_query('SELECT generate_series(1, 5000)')
    @connection.set_single_row_mode
    sum = 0
    @connection.get_result.stream_each_row { |row| sum += row[0].to_i }
    assert_equal 12_502_500, sum
  end

  def test_errors_have_all_their_fields
    @connection.exec("INSERT INTO ruby_items VALUES (1, 'a')")
    error = assert_raises(PG::UniqueViolation) do
      @connection.exec_params('INSERT INTO ruby_items VALUES ($1, $2)', [1, 'b'])
    end
    fields = [PG::PG_DIAG_SEVERITY, PG::PG_DIAG_SQLSTATE, PG::PG_DIAG_MESSAGE_DETAIL,
              PG::PG_DIAG_SCHEMA_NAME, PG::PG_DIAG_TABLE_NAME, PG::PG_DIAG_CONSTRAINT_NAME,
              PG::PG_DIAG_SOURCE_FUNCTION].map { |field| error.result.error_field(field) }
    assert_equal ['ERROR', '23505', 'Key (id)=(1) already exists.', 'public', 'ruby_items',
                  'ruby_items_pkey', '_bt_check_unique'], fields
  end

  def test_notices_arrive_in_order
    got = []
    @connection.exec('SET client_min_messages = notice')
    @connection.set_notice_processor { |text| got << text.strip }
    @connection.exec("DO $$ BEGIN RAISE NOTICE 'one'; RAISE WARNING 'two'; END $$")
    assert_equal ['NOTICE:  one', 'WARNING:  two'], got
  end

  def test_notifications_arrive_after_their_commit
    speaker = PG.connect
    @connection.exec('LISTEN ruby_news')
    speaker.exec("BEGIN; NOTIFY ruby_news, 'rolled back'; ROLLBACK")
    speaker.exec("NOTIFY ruby_news, 'first'")
    speaker.exec_params('SELECT pg_notify($1, $2)', %w[ruby_news second])
    got = []
    2.times { @connection.wait_for_notify(DEADLINE_S) { |name, _, text| got << [name, text] } }
    assert_equal [%w[ruby_news first], %w[ruby_news second]], got
    @connection.exec('UNLISTEN *')
  ensure
    speaker&.close
  end

  def test_cancel_ends_the_query
    @connection.send_query('SELECT pg_sleep(60)')
    # A cancel that comes before the query is void, as it is without the shim.
    until @connection.block(0.05)
      assert_nil @connection.cancel
    end
    assert_raises(PG::QueryCanceled) { @connection.get_last_result }
    assert_equal '1', value('SELECT 1')
  end

  def test_settings_follow_their_client
    other = PG.connect(options: '-c work_mem=9MB')
    @connection.exec("SET work_mem = '7MB'")
    10.times do
      assert_equal '7MB', value('SHOW work_mem')
      assert_equal '9MB', other.exec('SHOW work_mem').getvalue(0, 0)
    end
  ensure
    other&.close
  end

  def test_large_objects
    @connection.transaction do |c|
      oid = c.lo_creat
      object = c.lo_open(oid, PG::INV_READ | PG::INV_WRITE)
      c.lo_write(object, 'x' * 1_000_000)
      c.lo_lseek(object, 0, PG::SEEK_SET)
      assert_equal 1_000_000, c.lo_read(object, 2_000_000).size
      c.lo_close(object)
      c.lo_unlink(oid)
    end
  end

  def test_many_connections_on_a_small_pool
    wrong = Queue.new
    CROWD.times.map do |number|
      Thread.new do
        connection = PG.connect(user: SMALL_USER)
        connection.prepare('asked', 'SELECT $1::int, $2::text')
        10.times do |step|
          asked = [(number * 1000 + step).to_s, number.to_s]
          connection.transaction do |c|
            got = c.exec_prepared('asked', asked).values[0]
            wrong << [asked, got] unless got == asked
          end
        end
        connection.close
      end
    end.each(&:join)
    assert_empty wrong.size.times.map { wrong.pop }
  end
end
