"""Questions from other processes: `lowtide why PID`. script.py is what such a process has this one execute."""
