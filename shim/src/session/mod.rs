//! One client: authenticate, then read, plan, route, pool, forward, observe, settle.
