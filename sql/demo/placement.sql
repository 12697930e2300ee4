-- What lives where; propagated to every shard in one two-phase transaction each.

SELECT pgdog.omni_table('plans');
SELECT pgdog.omni_table('tenants');
SELECT pgdog.omni_table('counters');
SELECT pgdog.omni_table('ledger');

SELECT pgdog.shard_table('users', 'tenant_id', 'bigint',
                         lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1',
                         lookup_result => 'shard');
SELECT pgdog.shard_table('orders', 'tenant_id', 'bigint',
                         lookup_query => 'SELECT shard_id FROM tenants WHERE id = $1',
                         lookup_result => 'shard');
