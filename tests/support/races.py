"""The same function in eight processes at once."""

# The end of a program that imports os and defines `work(process)`; exceptions are printed.
EIGHT_AT_ONCE = """
wait, go = os.pipe()
children = []
for process in range(8):
    pid = os.fork()
    if pid == 0:
        os.close(go)
        os.read(wait, 1)  # returns when the parent closes the other end
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
