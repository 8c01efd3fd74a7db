"""What a sleep in the kernel waits for, in words, by the function in which a thread sleeps (wchan of proc(5))."""

from __future__ import annotations

import re

# Names of functions in fs/, net/ and kernel/ of Linux, and of the client modules of networked file systems.
_WAITS = tuple((re.compile(pattern), words) for pattern, words in (
    ("rpc_wait|nfs", "an NFS server"),
    ("fuse_|request_wait_answer", "a FUSE file system"),
    ("ptlrpc|cl_sync_io|osc_|ll_", "a Lustre server"),
    ("ceph", "a Ceph server"),
    ("flock_lock|fcntl_setlk|posix_lock|locks_lock", "the lock of a file"),
    ("wait_for_partner", "somebody to open the other end of a named pipe"),
    ("(anon_)?pipe_read", "somebody to write into a pipe"),  # with `anon_` since Linux 6.15
    ("(anon_)?pipe_write", "somebody to read a full pipe"),
    ("n_tty_read", "somebody to type at a terminal"),
    ("__do_sys_pause|do_sigtimedwait|sigsuspend", "a signal"),
    ("do_wait", "the end of a child"),
    ("signalfd", "a signal"),
    ("wq_sleep", "a message queue"),
    ("futex", "a lock or a signal of another thread"),
    ("wait_woken|unix_stream|skb_wait|sk_wait|tcp_recv|inet_csk_accept", "data or a connection on a socket"),
    ("io_schedule|folio_wait|wait_on_page|blk_|jbd2|wbt_", "a disk"),
))  # fmt: skip


def words(wchan: str) -> str:
    """For what a thread waits that sleeps in this kernel function; empty where that is not known."""
    return next((words for pattern, words in _WAITS if pattern.match(wchan)), "")
