# Loads taskd's stand-in for the launcher before torchrun's own imports. Reason: see README.md beside this file.
# Anchored at `import os`, which every version has: `import logging`, where older launch scripts put their line, is no
# longer in torch 2.13's file, and their sed command changes nothing there.
/^import taskd\.python\.adaptor\.patch$/,$b
0,/^import os$/s//import taskd.python.adaptor.patch\nimport os/
