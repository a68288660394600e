"""Have eight processes do the same thing at the same moment."""

# Ends a program, for a process of its own, that imports os and defines `work(process)`; what fails is printed.
EIGHT_AT_ONCE = """
wait, go = os.pipe()
children = []
for process in range(8):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)  # until the parent closes the other end
        try:
            work(process)
        except BaseException as error:
            print(repr(error), flush=True)
            os._exit(1)
        os._exit(0)
    children.append(pid)
os.close(wait)
os.close(go)
for pid in children:
    os.waitpid(pid, 0)
"""
